package dlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLazyTimeout(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		values := context.WithValue(context.Background(), key{}, "value")
		start := time.Now()
		for name, look := range map[string]func(*lazyTimeout){
			"asked for Done": func(l *lazyTimeout) { l.Done() },
			"asked for Err":  func(l *lazyTimeout) { l.Err() },
			"asked for a child": func(l *lazyTimeout) {
				_, cancel := context.WithCancel(l)
				defer cancel()
			},
			"not asked": func(*lazyTimeout) {},
		} {
			l := newLazyTimeout(values, time.Second)
			look(l)
			require.NoError(t, l.Err(), name)
			deadline, ok := l.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Now().Add(time.Second), deadline)
			require.Equal(t, "value", l.Value(key{}))
			time.Sleep(time.Second)
			<-l.Done()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
			l.cancel()
			require.Equal(t, context.DeadlineExceeded, l.Err(), name)
		}
		require.Equal(t, 4*time.Second, time.Since(start))

		l := newLazyTimeout(values, time.Second)
		l.cancel()
		<-l.Done()
		require.Equal(t, context.Canceled, l.Err())
		l = newLazyTimeout(values, time.Second)
		done := l.Done()
		l.cancel()
		<-done
		require.Equal(t, context.Canceled, context.Cause(l))
	})
}
