package errs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHide(t *testing.T) {
	op := &net.OpError{Op: "read", Err: io.EOF}
	err := fmt.Errorf("%w and %w", context.Canceled, op)
	hidden := HideContext(err)
	require.Equal(t, err.Error(), hidden.Error())
	require.NotErrorIs(t, hidden, context.Canceled)
	require.ErrorIs(t, hidden, io.EOF)
	var found *net.OpError
	require.ErrorAs(t, hidden, &found)
	require.Nil(t, errors.Unwrap(hidden))
	require.ErrorIs(t, Hide(err, io.EOF), context.Canceled)
	require.Equal(t, error(op), HideContext(op), "there is nothing to hide")
	require.NoError(t, HideContext(nil))
}

func TestReword(t *testing.T) {
	err := Reword("text", io.EOF, net.ErrClosed)
	require.EqualError(t, err, "text")
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, err, net.ErrClosed)
	require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
	require.True(t, InChain(err, func(e error) bool { return e == net.ErrClosed }))
	require.NotErrorIs(t, Reword("text", nil, nil), io.EOF)
	require.NotPanics(t, func() {
		errors.Is(Reword("a", nil, HideContext(context.Canceled)), Reword("a", nil, HideContext(context.Canceled)))
	})
}

func TestInChain(t *testing.T) {
	eof := func(err error) bool { return err == io.EOF }
	require.True(t, InChain(fmt.Errorf("read: %w", io.EOF), eof))
	require.False(t, InChain(errors.Join(io.EOF), eof))
	require.False(t, InChain(nil, eof))
	_, ok := Find[*net.OpError](errors.Join(new(net.OpError)))
	require.False(t, ok)
	found, ok := Find[*net.OpError](fmt.Errorf("read: %w", &net.OpError{Op: "read"}))
	require.True(t, ok && found.Op == "read")
}

func TestBesidesEnd(t *testing.T) {
	end := context.DeadlineExceeded
	for _, row := range []struct{ err, want error }{
		{nil, nil},
		{io.EOF, io.EOF},
		{end, nil},
		{fmt.Errorf("read: %w", end), nil},
		{fmt.Errorf("%w: %w", end, io.EOF), io.EOF},
		{fmt.Errorf("wait: %w", fmt.Errorf("%w: %w", end, io.EOF)), io.EOF},
	} {
		require.Equal(t, row.want, BesidesEnd(row.err))
	}
	joined := errors.Join(io.EOF, end)
	require.Equal(t, joined, BesidesEnd(joined), "the end is not the first")
	require.True(t, IsContext(end))
	require.False(t, IsContext(fmt.Errorf("read: %w", end)))
}
