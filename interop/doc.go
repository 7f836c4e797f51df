// Package interop tests dlock beside other libraries that keep locks on Redis in the same way, redsync and redislock; and
// shows, against a real server, what known lock libraries do in the situations that dlock is designed
// for: README.md lists these claims. It is a module of its own, so that the libraries stay out
// of the dependencies of dlock. It is not released: run it in a clone of the repository.
package interop
