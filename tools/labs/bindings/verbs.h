/* What tools/labs/bindings makes the bindings of libibverbs and libefa of. */
#include <infiniband/verbs.h>
#include <infiniband/efadv.h>
