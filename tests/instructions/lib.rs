//! Nothing: all there is is the bench.
