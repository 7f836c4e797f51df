package rueidis

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/dlock-go/dlock/backend/rediscore"
)

// replicatedLimit is how long calls with a WAIT may take beside the WAIT. rueidis itself has no
// limit for commands that block.
const replicatedLimit = 5 * time.Second

// EvalReplicated implements [rediscore.Replicator]. WAIT is a command that blocks, so rueidis takes
// a connection of its blocking pool for it and the calls before it.
func (c conn) EvalReplicated(ctx context.Context, calls []rediscore.Call, results []rediscore.Result, wait rediscore.Replication) {
	if err := c.closing.before(); err != nil {
		rediscore.Fail(results, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, max(wait.Timeout, wait.Timeout+replicatedLimit)) // the sum may overflow
	defer cancel()
	c.tryShared(calls[0])
	met := make(map[string]bool)
	master := func(call rediscore.Call, address string) (string, error) {
		if !c.Cluster() {
			return "", nil
		}
		if address == "" {
			address = c.masters.of(ctx, c.client, rediscore.Slot(call.Keys()[0]))
		} else {
			c.masters.forget()
		}
		known := c.client.Nodes()[address] != nil
		if !known && !met[address] {
			met[address] = true
			c.meet(ctx, call.Keys()[0])
			known = c.client.Nodes()[address] != nil
		}
		if !known {
			c.masters.forget()
			return "", rediscore.ErrNoMaster
		}
		return address, nil
	}
	rediscore.EvalByMaster(calls, results, master, func(address string, asking bool, numbers []int) {
		unknown := c.evalAndWait(ctx, address, asking, wait, numbers, results, func(i int) rueidis.Completed {
			return c.command("EVALSHA", calls[i].Script.SHA, calls[i])
		})
		c.evalAndWait(ctx, address, asking, wait, unknown, results, func(i int) rueidis.Completed {
			return c.command("EVAL", calls[i].Script.Source, calls[i])
		})
	})
	c.closing.afterAll(ctx, results)
}

// evalAndWait makes the calls with the given indices, and a WAIT behind them, on one connection of a
// node. It returns the indices of those whose script the server does not know.
func (c conn) evalAndWait(ctx context.Context, address string, asking bool, wait rediscore.Replication,
	numbers []int, results []rediscore.Result, newCmd func(i int) rueidis.Completed) (unknown []int) {
	if len(numbers) == 0 {
		return nil
	}
	node := rueidis.CommandClient(c.way)
	if address != "" {
		client := c.client.Nodes()[address]
		if node = client; client == nil {
			for _, i := range numbers {
				results[i].Err = rediscore.ErrNoMaster
			}
			return nil
		}
	}
	var cmds rueidis.Commands
	replyOf := make([]int, len(numbers))
	for n, i := range numbers {
		if asking {
			cmds = append(cmds, node.B().Arbitrary("ASKING").Build())
		}
		replyOf[n] = len(cmds)
		cmds = append(cmds, newCmd(i))
	}
	cmds = append(cmds, node.B().Wait().Numreplicas(int64(wait.Replicas)).Timeout(wait.Milliseconds(ctx)).Build())
	replies := c.client.doMulti(ctx, node, cmds)
	replicas, err := replies[len(cmds)-1].AsInt64()
	for n, i := range numbers {
		r := &results[i]
		r.Reply, r.Err = result(replies[replyOf[n]])
		r.Replicas, r.NoWait = int(replicas), err
		switch {
		case noScript(r.Err):
			unknown = append(unknown, i)
		case replies[replyOf[n]].NonRedisError() != nil:
			c.masters.forget()
		}
	}
	return unknown
}
