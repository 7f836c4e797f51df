package conformance

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dlock-go/dlock"
)

// A remote is a store that listens on the network: each call sends a byte and
// waits for one before it does what a toy does.
type remote struct {
	dlock.Locker
	addr string
	lie  func(err error) error // what becomes of the error of a store that does not answer
}

func (r remote) ask(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.addr)
	if err != nil {
		return r.lie(err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err = conn.Write([]byte("?")); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return r.lie(err)
}

func (r remote) TryAcquire(ctx context.Context, key, token string, ttl time.Duration) (dlock.Attempt, error) {
	if err := r.ask(ctx); err != nil {
		return dlock.Attempt{}, err
	}
	return r.Locker.TryAcquire(ctx, key, token, ttl)
}

func (r remote) Renew(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := r.ask(ctx); err != nil {
		return false, err
	}
	return r.Locker.Renew(ctx, key, token, ttl)
}

func (r remote) Release(ctx context.Context, key, token string) (bool, error) {
	if err := r.ask(ctx); err != nil {
		return false, err
	}
	return r.Locker.Release(ctx, key, token)
}

// echo answers each byte, and returns where it listens.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				buf := make([]byte, 1)
				for {
					if _, err := conn.Read(buf); err != nil {
						return
					}
					conn.Write(buf)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return l.Addr().String()
}

func TestUnreachableStoreCatches(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for name, test := range map[string]struct {
		lie  func(error) error
		want string
	}{
		"correct":             {func(err error) error { return err }, ""},
		"says that it is so":  {func(error) error { return nil }, "returned no error"},
		"says that it is not": {func(err error) error { return errors.Join(err, dlock.ErrInvalid) }, "was not asked"},
	} {
		t.Run(name, func(t *testing.T) {
			store := newToy("")
			addr := echo(t)
			h := Harness{
				New:  func(*testing.T) dlock.Locker { return plainToy{store} },
				Addr: addr,
				Via: func(_ *testing.T, addr string) dlock.Locker {
					return remote{plainToy{store}, addr, func(err error) error {
						if err == nil {
							return nil
						}
						return test.lie(err)
					}}
				},
			}
			err := play(t, h, caseNamed(t, "UnreachableStore"))
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

// plainToy hides what a toy can do beyond a Locker.
type plainToy struct{ dlock.Locker }
