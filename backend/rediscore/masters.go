package rediscore

import (
	"errors"
	"sync"

	"github.com/dlock-go/dlock"
	"github.com/dlock-go/dlock/backend/internal/rediserr"
)

// maxRedirections is how often EvalByMaster sends a call again that was redirected.
const maxRedirections = 3

// EvalByMaster makes calls in a cluster: those for one master together, and for several masters at
// the same time. A redirected call is sent to the new node. It is for the methods of a [Conn].
//
// The function master returns the master of a call or, if address is not empty, the node that a
// redirection names. The function eval makes the calls with the given indices on a node. If asking
// is set, it sends ASKING before each.
func EvalByMaster[M comparable](
	calls []Call, results []Result,
	master func(call Call, address string) (M, error),
	eval func(node M, asking bool, numbers []int),
) {
	type target struct {
		node   M
		asking bool
	}
	type found struct {
		node M
		err  error
	}
	numbers := make([]int, len(calls))
	for i := range calls {
		numbers[i] = i
	}
	for range 1 + maxRedirections {
		named := make(map[string]found) // by address
		groups := make(map[target][]int)
		for _, i := range numbers {
			address, asking := redirection(results[i].Err)
			f, ok := named[address]
			if !ok {
				if f.node, f.err = master(calls[i], address); address != "" {
					named[address] = f
				}
			}
			switch t := (target{f.node, asking}); {
			case f.err == nil:
				groups[t] = append(groups[t], i)
			case address == "":
				results[i].Err = f.err
			default: // the node is so new that the client does not know it
				results[i].Err = ErrNoMaster
			}
		}
		var all sync.WaitGroup
		for t, group := range groups {
			all.Go(func() {
				if err := rediserr.Try(func() { eval(t.node, t.asking, group) }); err != nil {
					for _, i := range group {
						results[i] = Result{Err: err}
					}
				}
			})
		}
		all.Wait()
		numbers = numbers[:0]
		for _, group := range groups {
			for _, i := range group {
				if IsRedirection(results[i].Err) {
					numbers = append(numbers, i)
				}
			}
		}
	}
}

// IsRedirection reports whether an error says that another node has the slot: MOVED or ASK.
func IsRedirection(err error) bool {
	address, _ := redirection(err)
	return address != ""
}

func redirection(err error) (address string, asking bool) {
	if err == nil {
		return "", false
	}
	return rediserr.Redirection(err.Error())
}

// ErrNoMaster is the error of a call whose master is not known at the moment.
var ErrNoMaster error = &dlock.NoEffectError{Err: errors.New("the master of the key is not known"), Temporary: true}
