package figures

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestFigures(t *testing.T) {
	all := make([]int, 200)
	for i := range all {
		all[i] = i
	}
	for q, want := range map[float64]int{0: 0, 0.5: 100, 0.99: 198, 1: 199} {
		assert.Equal(t, want, Quantile(all, q))
	}
	assert.Zero(t, Quantile([]int(nil), 0.5))
	assert.Equal(t, 2, Median([]int{3, 1, 2}))

	for x, want := range map[float64]string{
		0: "0", 0.001: "0", 0.0523: "0.052", 0.2: "0.2", 1: "1", 1.26: "1.3", 9.96: "10", 999: "999", 1234: "1,234", 1e6: "1,000,000", -3: "0", math.NaN(): "–",
	} {
		assert.Equal(t, want, Human(x), x)
	}
}
