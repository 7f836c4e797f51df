// Package reproductions shows, against a real server, what known lock libraries and
// recipes do in the situations that dlock is designed for: one test for each claim, which
// passes where the claim holds. It is a module of its own, so that the libraries stay out
// of the dependencies of dlock. It is not released: run it in a clone of the repository.
// README.md lists the claims.
package reproductions
