//! Every interleaving of a small PANAMA cluster.
