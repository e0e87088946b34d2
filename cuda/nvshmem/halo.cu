// halo: a stencil on a grid that is spread over PEs by rows, with the rows at the seams exchanged
// by puts with signals.
//
// Heat spreads over a plate: in each step every inner point becomes the mean of its four neighbours
// (Jacobi's method). A PE owns a band of rows. Above and below it keeps a copy of its neighbour's
// nearest row, the halo, and in every step sends its own outermost rows to be the neighbours' halo.
//
//        PE 0:  rows of PE 0          The blocks of a step's kernel:
//               halo: first row of 1
//        PE 1:  halo: last row of 0     first block   waits for the halo above, computes the first
//               rows of PE 1                          row, sends it up with a signal
//               halo: first row of 2    last block    the same below
//        PE 2:  halo: last row of 1     other blocks  rows between, which need no halo: they are
//               rows of PE 2                          computed while the halo is on its way
//
// The signal's value is the step for which a halo is ready, so it only grows and nothing is reset.
// There are two grids, 'now' and 'then', that change places. That a neighbour writes the halo of
// 'then' while this PE is a step behind is safe: it writes after it has our signal for this step,
// and that was sent by the same block that was the last to read the halo it writes to.
//
// The result is compared with the same steps on the CPU, number by number: the sums are made in the
// same order, so they are equal to the last bit.
#include "device.cuh"

using namespace prog;

namespace {

constexpr int kThreads = 256;
constexpr int kInnerBlocks = 16;

// The part of the plate that a PE holds: its rows, between two halo rows or the plate's edge.
struct Band {
    float *grids[2];       // symmetric; (rows + 2) rows of 'columns'
    uint64_t *from_above;  // the step for which the halo above is here
    uint64_t *from_below;
    int columns;
    int rows;
    int above;       // the PE above, or -1 at the plate's edge
    int below;       // the PE below, or -1
    int rows_above;  // how many rows the PE above has, which is where its lower halo lies
};

// The plate's points at the start: its upper edge is hot, and its inside is not uniform.
PROG_BOTH float start_value(int row, int column) {
    return row == 0 ? 100.0f : float((row * 31 + column * 17) % 50);
}

PROG_BOTH float mean(float up, float down, float left, float right) {
    return 0.25f * (((up + down) + left) + right);
}

// Computes one row, by all threads of a block.
__device__ void compute_row(const float *now, float *then, int row, int columns) {
    const float *up = now + size_t(row - 1) * columns;
    // Volatile: the rows above and below may be halos, which came while the kernel ran.
    const volatile float *above = up;
    const volatile float *here = up + columns;
    const volatile float *below = up + 2 * size_t(columns);
    float *result = then + size_t(row) * columns;
    for (int column = 1 + int(threadIdx.x); column < columns - 1; column += blockDim.x) {
        result[column] = mean(above[column], below[column], here[column - 1], here[column + 1]);
    }
}

// Waits for a halo, computes the row beside it, and sends that row to the PE from which the halo
// came. 'halo_there' is where that PE keeps it.
__device__ void compute_seam(const float *now, float *then, int row, int columns, uint64_t step,
                             int neighbour, uint64_t *ready, float *halo_there,
                             uint64_t *ready_there) {
    if (neighbour >= 0 && threadIdx.x == 0) {
        nvshmem_signal_wait_until(ready, NVSHMEM_CMP_GE, step);
    }
    __syncthreads();
    compute_row(now, then, row, columns);
    // The whole row is written before any of it is sent, and the put is over before the row is
    // written again, two steps from here.
    __threadfence_system();
    __syncthreads();
    if (neighbour >= 0) {
        nvshmemx_putmem_signal_block(halo_there, then + size_t(row) * columns,
                                     columns * sizeof(float), ready_there, step + 1,
                                     NVSHMEM_SIGNAL_SET, neighbour);
    }
}

// One step of one PE. Needs two blocks or more, and two rows or more.
__global__ void advance(Band band, uint64_t step) {
    const float *now = band.grids[step % 2];
    float *then = band.grids[(step + 1) % 2];
    const int columns = band.columns;
    if (blockIdx.x == 0) {
        // Our first row is the lower halo of the PE above. That PE may have another number of rows.
        compute_seam(now, then, 1, columns, step, band.above, band.from_above,
                     then + size_t(band.rows_above + 1) * columns, band.from_below);
    } else if (blockIdx.x == gridDim.x - 1) {
        // Our last row is the upper halo of the PE below.
        compute_seam(now, then, band.rows, columns, step, band.below, band.from_below, then,
                     band.from_above);
    } else {
        for (int row = 1 + int(blockIdx.x); row < band.rows; row += gridDim.x - 2) {
            compute_row(now, then, row, columns);
        }
    }
}

// Rows of the plate's inside, from 'first' to before 'first + count'; the rest goes to the first
// PEs.
struct Share {
    int first;
    int count;
};

Share share_of(int pe, int n_pes, int rows) {
    const int each = rows / n_pes, rest = rows % n_pes;
    return {1 + pe * each + std::min(pe, rest), each + (pe < rest ? 1 : 0)};
}

// The whole plate after so many steps, computed on the CPU.
std::vector<float> computed_on_cpu(int rows, int columns, uint64_t steps) {
    std::vector<float> now(size_t(rows + 2) * columns);
    for (int row = 0; row < rows + 2; row++) {
        for (int column = 0; column < columns; column++) {
            now[size_t(row) * columns + column] = start_value(row, column);
        }
    }
    std::vector<float> then = now;
    for (uint64_t step = 0; step < steps; step++) {
        for (int row = 1; row <= rows; row++) {
            for (int column = 1; column < columns - 1; column++) {
                const size_t at = size_t(row) * columns + column;
                then[at] = mean(now[at - columns], now[at + columns], now[at - 1], now[at + 1]);
            }
        }
        std::swap(now, then);
    }
    return now;
}

void run(Job &job, int rows, int columns, uint64_t steps) {
    const Share mine = share_of(job.pe(), job.n_pes(), rows);
    // Symmetric memory is of one size on all PEs: the first has the most rows.
    const size_t points = size_t(share_of(0, job.n_pes(), rows).count + 2) * columns;
    Symmetric<float> grid_a(job, points), grid_b(job, points);
    Symmetric<uint64_t> from_above(job, 1), from_below(job, 1);

    // Both grids, with their edges and the halos of the first step, start out the same.
    std::vector<float> start(points);
    for (int row = 0; row < mine.count + 2; row++) {
        for (int column = 0; column < columns; column++) {
            start[size_t(row) * columns + column] = start_value(mine.first - 1 + row, column);
        }
    }
    grid_a.write(start);
    grid_b.write(start);

    Band band{};
    band.grids[0] = grid_a.get();
    band.grids[1] = grid_b.get();
    band.from_above = from_above.get();
    band.from_below = from_below.get();
    band.columns = columns;
    band.rows = mine.count;
    band.above = job.pe() > 0 ? job.pe() - 1 : -1;
    band.below = job.pe() + 1 < job.n_pes() ? job.pe() + 1 : -1;
    band.rows_above = job.pe() > 0 ? share_of(job.pe() - 1, job.n_pes(), rows).count : 0;

    job.barrier();
    Stopwatch watch(job);
    for (uint64_t step = 0; step < steps; step++) {
        launch_together(job, advance, kInnerBlocks + 2, kThreads, band, step);
    }
    const double microseconds = watch.microseconds();
    job.barrier();

    const std::vector<float> got = (steps % 2 == 0 ? grid_a : grid_b).read();
    const std::vector<float> whole = computed_on_cpu(rows, columns, steps);
    for (int row = 0; row < mine.count; row++) {
        for (int column = 0; column < columns; column++) {
            const float value = got[size_t(row + 1) * columns + column];
            const float expected = whole[size_t(mine.first + row) * columns + column];
            if (value != expected) {
                return job.fail("row " + std::to_string(mine.first + row) + ", column " +
                                std::to_string(column) + " after " + std::to_string(steps) +
                                " steps: got " + std::to_string(value) + ", expected " +
                                std::to_string(expected));
            }
        }
    }
    const Table table(job, "a step, with the exchange of two rows of this size", kLatency);
    table.row(columns * sizeof(float), "block", microseconds / double(steps));
}

}  // namespace

int main(int argc, char **argv) {
    uint64_t rows = 1000, columns = 1024, steps = 100;
    parse_or_exit(argc, argv, "halo", "A stencil over rows on all PEs, compared with the CPU.",
                  {{"rows", "rows of the plate, without its edges", &rows, 4, 100'000},
                   {"columns", "columns of the plate, edges included", &columns, 3, 100'000},
                   {"iters", "steps", &steps, 1, 100'000}});
    Job job("halo");
    if (rows < 2 * uint64_t(job.n_pes())) {
        job.fail("each PE needs two rows, and there are " + std::to_string(rows));
    } else {
        run(job, int(rows), int(columns), steps);
    }
    return job.finish();
}
