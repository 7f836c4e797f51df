package history

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSameSeedSameSteps(t *testing.T) {
	steps := func(seed uint64, client int) []Step {
		p := NewPlan(seed, client, time.Second)
		var all []Step
		for range 200 {
			all = append(all, p.Next(2))
		}
		return all
	}
	assert.Equal(t, steps(1, 0), steps(1, 0))
	assert.NotEqual(t, steps(1, 0), steps(2, 0), "the seed makes no difference")
	assert.NotEqual(t, steps(1, 0), steps(1, 1), "all clients do the same")
	for _, task := range tasks {
		assert.True(t, slices.ContainsFunc(steps(1, 0), func(s Step) bool { return s.Task == task.task }), "task %d is never done", task.task)
	}
}

func TestSharesAddUp(t *testing.T) {
	sum := 0
	for _, task := range tasks {
		sum += task.share
	}
	assert.Equal(t, 100, sum)
}
