//! Model architectures: hyper-parameters to compute graph, one file each.
