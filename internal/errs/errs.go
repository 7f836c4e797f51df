// Package errs changes what errors say, and what they match; and it looks for errors in others.
package errs

import (
	"context"
	"errors"
	"slices"
)

// Hide returns an error that reads like err and matches what err matches, except hidden. It wraps
// nothing.
func Hide(err error, hidden ...error) error {
	if slices.ContainsFunc(hidden, func(target error) bool { return errors.Is(err, target) }) {
		return &hiding{err, hidden}
	}
	return err
}

// HideContext hides the errors of contexts.
func HideContext(err error) error { return Hide(err, context.Canceled, context.DeadlineExceeded) }

type hiding struct {
	err    error
	hidden []error
}

func (e *hiding) Error() string { return e.err.Error() }

func (e *hiding) Is(target error) bool {
	return !slices.Contains(e.hidden, target) && errors.Is(e.err, target)
}

func (e *hiding) As(target any) bool { return errors.As(e.err, target) }

// Reword returns an error with another text than err, which it wraps. It matches also, too, unless that is nil.
func Reword(text string, also, err error) error { return &reworded{text, also, err} }

type reworded struct {
	text      string
	also, err error
}

func (e *reworded) Error() string { return e.text }

func (e *reworded) Is(target error) bool { return e.also != nil && target == e.also }

func (e *reworded) Unwrap() error { return e.err }

// InChain reports whether err, or one that it wraps, is so. It does not look into errors that are joined.
func InChain(err error, is func(error) bool) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if is(err) {
			return true
		}
	}
	return false
}

// Find returns the first error of type T among err and those that it wraps. It does not look into errors that are joined.
func Find[T error](err error) (found T, ok bool) {
	InChain(err, func(e error) bool {
		found, ok = e.(T)
		return ok
	})
	return found, ok
}

// IsContext reports whether err is the plain error of a context.
func IsContext(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded
}

// BesidesEnd returns the part of an error that does not say that a context has ended, or nil. In an error that
// joins two, of which the first is that of a context, it is the second.
func BesidesEnd(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if IsContext(e) {
			return nil
		}
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			if all := joined.Unwrap(); len(all) == 2 && IsContext(all[0]) {
				return all[1]
			}
		}
	}
	return err
}
