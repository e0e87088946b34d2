//! Which variables a report tells. Of others it tells the name, and that it is set: a value may be
//! a secret of whatever name, as a job's key is under `FI_OPX_UUID`.

use nvshmem_transport_libfabric::logging;
use nvshmem_transport_libfabric::settings::Settings;

/// What the variables begin with that decide how NVSHMEM and its libraries behave.
const PREFIXES: [&str; 5] = ["NVSHMEM", "FI_", "CUDA_", "MLX5_", "LD_"];

/// Those whose values are told, beside this transport's own settings: switches, sizes, names of
/// interfaces and libraries.
const TOLD: &[&str] = &[
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "FI_CXI_DEFAULT_CQ_SIZE",
    "FI_CXI_DISABLE_HMEM_DEV_REGISTER",
    "FI_CXI_DISABLE_HOST_REGISTER",
    "FI_CXI_DISABLE_NON_INJECT_RMA_IDC",
    "FI_CXI_OPTIMIZED_MRS",
    "FI_CXI_RDZV_GET_MIN",
    "FI_CXI_RDZV_PROTO",
    "FI_CXI_RDZV_THRESHOLD",
    "FI_CXI_REQ_BUF_SIZE",
    "FI_CXI_RX_MATCH_MODE",
    "FI_EFA_ENABLE_SHM_TRANSFER",
    "FI_EFA_FORK_SAFE",
    "FI_EFA_IFACE",
    "FI_EFA_MR_RELAXED_ORDERING",
    "FI_EFA_RX_SIZE",
    "FI_EFA_TX_SIZE",
    "FI_EFA_USE_DATA_PATH_DIRECT",
    "FI_EFA_USE_DEVICE_RDMA",
    "FI_EFA_USE_HUGE_PAGE",
    "FI_FORK_UNSAFE",
    "FI_HMEM",
    "FI_HMEM_CUDA_USE_DMABUF",
    "FI_HMEM_CUDA_USE_GDRCOPY",
    "FI_HMEM_DISABLE_P2P",
    "FI_LOG_LEVEL",
    "FI_LOG_PROV",
    "FI_LOG_SUBSYS",
    "FI_MR_CACHE_MAX_COUNT",
    "FI_MR_CACHE_MAX_SIZE",
    "FI_MR_CACHE_MONITOR",
    "FI_MR_CUDA_CACHE_MONITOR_ENABLED",
    "FI_OFI_RXM_BUFFER_SIZE",
    "FI_OFI_RXM_RX_SIZE",
    "FI_OFI_RXM_TX_SIZE",
    "FI_OFI_RXM_USE_SRX",
    "FI_PROVIDER",
    "FI_PROVIDER_PATH",
    "FI_SHM_TX_SIZE",
    "FI_TCP_IFACE",
    "FI_UNIVERSE_SIZE",
    "FI_VERBS_IFACE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MLX5_POST_SEND_PREFER_BF",
    "MLX5_SCATTER_TO_CQE",
    "MLX5_SHUT_UP_BF",
    "MLX5_SINGLE_THREADED",
    "NVSHMEM_BOOTSTRAP",
    "NVSHMEM_BOOTSTRAP_MPI_PLUGIN",
    "NVSHMEM_BOOTSTRAP_PMI",
    "NVSHMEM_BOOTSTRAP_TWO_STAGE",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
    "NVSHMEM_CUDA_LIMIT_STACK_SIZE",
    "NVSHMEM_CUMEM_GRANULARITY",
    "NVSHMEM_DISABLE_CUDA_VMM",
    "NVSHMEM_DISABLE_GDRCOPY",
    "NVSHMEM_DISABLE_LOCAL_ONLY_PROXY",
    "NVSHMEM_DISABLE_MNNVL",
    "NVSHMEM_DISABLE_NVLS",
    "NVSHMEM_DISABLE_P2P",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING",
    "NVSHMEM_HCA_LIST",
    "NVSHMEM_HCA_PE_MAPPING",
    "NVSHMEM_HOME",
    "NVSHMEM_IBGDA_NUM_RC_PER_PE",
    "NVSHMEM_IB_ENABLE_IBGDA",
    "NVSHMEM_IB_GID_INDEX",
    "NVSHMEM_INFO",
    "NVSHMEM_MAX_MEMORY_PER_GPU",
    "NVSHMEM_MAX_TEAMS",
    "NVSHMEM_PROXY_REQUEST_BATCH_MAX",
    "NVSHMEM_REMOTE_TRANSPORT",
    "NVSHMEM_SYMMETRIC_SIZE",
    "NVSHMEM_VERSION",
];

/// Whether a variable belongs into a report, with its value or without.
pub(super) fn belongs(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether its value is told.
pub(super) fn is_told(name: &str) -> bool {
    TOLD.contains(&name)
        || logging::VARIABLES.iter().any(|variable| variable.name == name)
        || Settings::default().describe().iter().any(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_and_secrets_of_any_name_are_not() {
        for told in ["NVSHMEM_LIBFABRIC_PROVIDER", "NVSHMEM_DEBUG", "FI_HMEM", "LD_PRELOAD"] {
            assert!(belongs(told) && is_told(told), "{told}");
        }
        for secret in [
            "NVSHMEM_AUTH",
            "NVSHMEM_PW",
            "FI_OPX_UUID",
            "FI_PSM2_UUID",
            "NVSHMEM_BOOTSTRAP_UID_SESSION_ID",
            "NVSHMEM_LIBFABRIC_OF_LATER",
        ] {
            assert!(belongs(secret) && !is_told(secret), "{secret}");
        }
        assert!(!belongs("PATH") && !belongs("AWS_SECRET_ACCESS_KEY"));
    }
}
