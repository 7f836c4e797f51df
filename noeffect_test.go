package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/dlock-go/dlock"
)

// What the error of a call says: whether it had an effect, and whether the store has refused it.
func TestErrorsOfCalls(t *testing.T) {
	reset, wrongPass := errors.New("connection reset"), errors.New("WRONGPASS")
	dial, read := &net.OpError{Op: "dial", Err: reset}, &net.OpError{Op: "read", Err: reset}
	marked := func(err error) error { return &dlock.NoEffectError{Err: err} }
	for _, test := range []struct {
		err               error
		noEffect, refused bool
	}{
		{nil, false, false},
		{reset, false, false},
		{read, false, false},
		{context.Canceled, false, false},
		{dlock.ErrClosed, false, false},
		{dlock.ErrUnavailable, false, false},
		{dial, true, false},
		{fmt.Errorf("pool: %w", dial), true, false},
		{errors.ErrUnsupported, true, false},
		{fmt.Errorf("%w key: empty", dlock.ErrInvalid), true, false},
		{marked(wrongPass), true, true},
		{fmt.Errorf("call: %w", marked(wrongPass)), true, true},
		{marked(dial), true, false},
		{marked(context.DeadlineExceeded), true, false},
		{marked(fmt.Errorf("%w: open", dlock.ErrUnavailable)), true, false},
		{&dlock.NoEffectError{Err: errors.New("LOADING"), Temporary: true}, true, false},
		// Each part of a joined error may be about another request.
		{fmt.Errorf("%w: %w", reset, marked(wrongPass)), false, false},
		{errors.Join(marked(wrongPass)), false, false},
		{errors.Join(dial, dial), false, false},
		{errors.Join(dlock.ErrInvalid), false, false},
		{marked(errors.Join(reset, wrongPass)), true, true},
		// A wait that its ctx has ended, and why the store was silent.
		{marked(fmt.Errorf("%w: %w", context.DeadlineExceeded, reset)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, dial)), true, false},
		{marked(fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass))), true, true},
		{fmt.Errorf("%w: %w", context.Canceled, marked(wrongPass)), false, false},
		// The error of several stores.
		{majority{answered: true}, false, false},
		{marked(majority{answered: true}), true, true},
		{marked(majority{answered: false}), true, false},
		{fmt.Errorf("call: %w", marked(majority{answered: false})), true, false},
	} {
		assert.Equal(t, test.noEffect, dlock.NoEffect(test.err), "NoEffect(%v)", test.err)
		assert.Equal(t, test.refused, dlock.Refused(test.err), "Refused(%v)", test.err)
	}
}

// A majority is an error about several stores.
type majority struct{ answered bool }

func (m majority) Error() string  { return "no majority" }
func (m majority) Answered() bool { return m.answered }
