package rediscore

import "github.com/dlock-go/dlock/backend/internal/rediserr"

// A combination is what a flight sends in place of its calls: the releases of one lock are one call. So all who have
// gone leave its queue before it is handed on.
type combination struct {
	calls []Call
	parts [][]int // which calls of the flight each stands for
}

// combine returns nil if no lock has several releases.
func combine(calls []Call) *combination {
	type lock struct{ name, counter string }
	releases := 0
	for _, call := range calls {
		if call.Script == releaseScript {
			releases++
		}
	}
	if releases < 2 {
		return nil
	}
	c, first := &combination{}, make(map[lock]int)
	for i, call := range calls {
		if call.Script == releaseScript {
			keys := call.Keys()
			lock := lock{keys[0], keys[1]}
			if at, found := first[lock]; found {
				c.parts[at] = append(c.parts[at], i)
				continue
			}
			first[lock] = len(c.calls)
		}
		c.calls, c.parts = append(c.calls, call), append(c.parts, []int{i})
	}
	if len(c.calls) == len(calls) {
		return nil
	}
	for at, part := range c.parts {
		if len(part) > 1 {
			c.calls[at] = releasesCall(calls, part)
		}
	}
	return c
}

// releasesCall releases the tokens of some calls, which are releases of one lock.
func releasesCall(calls []Call, part []int) Call {
	tokens := make([]string, len(part))
	for n, i := range part {
		tokens[n] = calls[i].Args[0]
	}
	return Call{Script: releasesScript, Args: tokens, keys: calls[part[0]].keys}
}

// spread gives each call of the flight its own result. It returns the calls that are to be made alone: a script
// for several has failed, without an effect, and one for each may not.
func (c *combination) spread(sent, results []Result) (alone []int) {
	for at, part := range c.parts {
		if len(part) > 1 && failedInside(sent[at].Err) {
			alone = append(alone, part...)
		}
		replies, many := sent[at].Reply.([]any)
		for n, i := range part {
			results[i] = sent[at]
			if many && len(part) > 1 && len(replies) == len(part) {
				results[i].Reply = replies[n]
			}
		}
	}
	return alone
}

// failedInside reports whether a command of a script failed for another reason than the state of the server.
func failedInside(err error) bool {
	if err == nil {
		return false
	}
	text := rediserr.Answer(err)
	return rediserr.InScript(text) && rediserr.Refusal(text) == 0
}
