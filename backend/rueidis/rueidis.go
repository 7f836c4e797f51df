package rueidis

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/rediscore"
)

// New returns a Locker that keeps its leases on client's server. It never closes the client. If
// client is nil, all methods of the Locker fail with [dlock.ErrInvalid].
func New(client rueidis.Client, opts ...Option) *rediscore.Locker {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return rediscore.New(nil, opts...)
	}
	return rediscore.New(newConn(client), opts...)
}

type conn struct {
	client  *guard
	closing *closing
	masters *masters // in a cluster
	detour  *detour
	way     *way
}

func newConn(client rueidis.Client) conn {
	g, d := newGuard(client), new(detour)
	return conn{g, &closing{client: g}, new(masters), d, &way{client, d}}
}

// Addr implements [rediscore.Addressed].
func (c conn) Addr() string {
	if c.client.Mode() == rueidis.ClientModeStandalone {
		if nodes := c.client.Nodes(); len(nodes) == 1 {
			for addr := range nodes {
				return addr
			}
		}
	}
	return ""
}

// command builds a command that rueidis does not retry, since it is not marked as read-only.
func (c conn) command(name, script string, call rediscore.Call) rueidis.Completed {
	return c.client.B().Arbitrary(name, script, strconv.Itoa(len(call.Keys()))).
		Keys(call.Keys()...).Args(call.Args...).Build()
}

func (c conn) Eval(ctx context.Context, call rediscore.Call) (any, error) {
	if err := c.closing.before(); err != nil {
		return nil, err
	}
	c.tryShared(call)
	r := c.do(ctx, "EVALSHA", call.Script.SHA, call)
	if noScript(r.Error()) {
		r = c.do(ctx, "EVAL", call.Script.Source, call)
	}
	reply, err := result(r)
	return reply, c.closing.after(ctx, err)
}

func (c conn) do(ctx context.Context, name, script string, call rediscore.Call) rueidis.RedisResult {
	for start, last := time.Now(), time.Now(); ; last = time.Now() {
		r := c.client.do(ctx, c.way, c.command(name, script, call))
		if !unsent(ctx, r.NonRedisError()) || !c.pause(ctx, start, last) {
			return r
		}
	}
}

func (c conn) EvalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	if err := c.closing.before(); err != nil {
		rediscore.Fail(results, err)
		return
	}
	c.tryShared(calls[0])
	c.evalAll(ctx, calls, results)
	c.closing.afterAll(ctx, results)
}

func (c conn) evalAll(ctx context.Context, calls []rediscore.Call, results []rediscore.Result) {
	// All results come together, after the time limit if a master does not answer. There
	// must be time left then to send the scripts that other masters do not know.
	first, cancel := half(ctx)
	defer cancel()
	numbers := make([]int, len(calls))
	for i := range calls {
		numbers[i] = i
	}
	unknown := c.evalSome(first, numbers, results, func(i int) rueidis.Completed {
		return c.command("EVALSHA", calls[i].Script.SHA, calls[i])
	})
	c.evalSome(ctx, unknown, results, func(i int) rueidis.Completed {
		return c.command("EVAL", calls[i].Script.Source, calls[i])
	})
}

// half returns a context for the first of two tries: it ends halfway between now and the
// deadline of ctx. If ctx has no deadline, half returns ctx.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// evalSome makes the calls with the given indices. It returns the indices of those whose script
// the server does not know.
func (c conn) evalSome(ctx context.Context, numbers []int, results []rediscore.Result, newCmd func(i int) rueidis.Completed) (unknown []int) {
	for start, last := time.Now(), time.Now(); len(numbers) > 0; last = time.Now() {
		cmds := make(rueidis.Commands, len(numbers))
		for n, i := range numbers {
			cmds[n] = newCmd(i)
		}
		var again []int
		for n, r := range c.doMulti(ctx, cmds) {
			i := numbers[n]
			results[i].Reply, results[i].Err = result(r)
			switch {
			case noScript(results[i].Err):
				unknown = append(unknown, i)
			case unsent(ctx, r.NonRedisError()):
				again = append(again, i)
			}
		}
		if len(again) == 0 || !c.pause(ctx, start, last) {
			break
		}
		numbers = again
	}
	return unknown
}

// doMulti is DoMulti of the client. In a cluster, that sends nothing and fails for all commands if
// rueidis knows no master for the slot of one. Since Redis 8, it leaves dead masters out of its
// table. The commands of each slot are sent alone then.
func (c conn) doMulti(ctx context.Context, cmds rueidis.Commands) []rueidis.RedisResult {
	results := c.client.doMulti(ctx, c.way, cmds)
	if !errors.Is(results[0].NonRedisError(), rueidis.ErrNoSlot) {
		return results
	}
	bySlot := make(map[uint16][]int)
	for n, cmd := range cmds {
		bySlot[cmd.Slot()] = append(bySlot[cmd.Slot()], n)
	}
	var all sync.WaitGroup
	for _, numbers := range bySlot {
		all.Go(func() {
			some := make(rueidis.Commands, len(numbers))
			for i, n := range numbers {
				some[i] = cmds[n]
			}
			for i, r := range c.client.DoMulti(ctx, some...) {
				results[numbers[i]] = r
			}
		})
	}
	all.Wait()
	return results
}

func noScript(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && e.IsNoScript()
}

// IsReply implements [rediscore.Replier].
func (conn) IsReply(err error) bool {
	_, is := rueidis.IsRedisErr(err)
	return is
}

// result returns the result of a call. A reply to another command, such as one that begins a connection, says that
// the call was not sent.
func result(r rueidis.RedisResult) (any, error) {
	m, err := r.ToMessage()
	_, other := rueidis.IsRedisErr(r.NonRedisError())
	switch {
	case other:
		return nil, &dlock.NoEffectError{Err: err}
	case rueidis.IsRedisNil(err):
		return nil, nil
	case err != nil:
		return nil, err
	case m.IsInt64():
		return m.ToInt64()
	}
	return m.ToAny()
}

// Drain implements [rediscore.Drainer].
func (c conn) Drain(ctx context.Context) {
	c.detour.close()
	c.client.drain(ctx, &c.detour.busy)
}

func (c conn) Cluster() bool { return c.client.Mode() == rueidis.ClientModeCluster }
