package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// wrap is the one place where errors get their context. While the caller's ctx is alive, a
// context error comes from a time limit of this package or the store's client, and is hidden.
// Once ctx has ended, the result matches its error, whatever the store's client returned.
func wrap(ctx context.Context, op, key string, err error) error {
	return fmt.Errorf("dlock: %s %q: %w", op, key, withEnd(ctx, err))
}

// withEnd is wrap without the call and its key.
func withEnd(ctx context.Context, err error) error {
	if end := ended(ctx); end == nil {
		err = hideContextErrors(err)
	} else if !errors.Is(err, end) {
		err = fmt.Errorf("%w: %w", endOf(ctx), err)
	}
	return err
}

func wrapUnlessLost(ctx context.Context, op, key string, err error) error {
	if err == nil || errors.Is(err, ErrLost) {
		return err
	}
	return wrap(ctx, op, key, err)
}

// ended is the error of ctx, also if its deadline has passed and ctx has not noticed: a socket
// with the same deadline may time out a little earlier.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// endOf is the error of a context that has ended, and its cause. If the cause is an error of
// this package, it is about another lease or Client (the context is from [Lease.Context], for
// example), so it is shown as text only.
func endOf(ctx context.Context) error {
	err, cause := ended(ctx), context.Cause(ctx)
	switch {
	case cause == nil, cause == err:
		return err
	case ours(cause) != nil:
		return fmt.Errorf("%w: %v", err, cause)
	case errors.Is(cause, err):
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// ours returns the error of this package that err matches, or nil.
func ours(err error) error {
	for _, target := range []error{ErrHeld, ErrUnavailable, ErrNested, ErrLost, ErrReleased, ErrInvalid, ErrClosed} {
		if errors.Is(err, target) {
			return target
		}
	}
	return nil
}

func hideContextErrors(err error) error {
	return hide(err, context.Canceled, context.DeadlineExceeded)
}

// hide returns an error that reads like err and matches what err matches, except hidden.
func hide(err error, hidden ...error) error {
	if slices.ContainsFunc(hidden, func(target error) bool { return errors.Is(err, target) }) {
		return hiding{err, hidden}
	}
	return err
}

type hiding struct {
	err    error
	hidden []error
}

func (e hiding) Error() string { return e.err.Error() }

func (e hiding) Is(target error) bool {
	return !slices.Contains(e.hidden, target) && errors.Is(e.err, target)
}

func (e hiding) As(target any) bool { return errors.As(e.err, target) }

// besidesEnd returns the part of an error that does not say that a context has ended, or nil.
func besidesEnd(err error) error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if contextError(e) {
			return nil
		}
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			if all := joined.Unwrap(); len(all) == 2 && contextError(all[0]) {
				return all[1]
			}
		}
	}
	return err
}

// contextError reports whether err is the plain error of a context.
func contextError(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded
}
