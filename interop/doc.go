// Package interop tests dlock beside other libraries that keep locks on Redis in the
// same way: redsync and redislock. It is a module of its own, so that they stay out of
// the dependencies of dlock. It is not released: run it in a clone of the repository.
package interop
