package adaptertest

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, for TestMain. It runs more tests at once than there are CPUs, since
// most of them wait. A goroutine that is left in the end is a failure.
func Main(m *testing.M) { goleak.VerifyTestMain(parallel{m}) }

type parallel struct{ *testing.M }

func (p parallel) Run() int {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := p.M.Run()
	AwaitGoroutines()
	return code
}

// AwaitGoroutines waits until client libraries have ended all their goroutines, for
// at most 10 s. rueidis closes connections to nodes that have lost their slots after 5 s
// only, also when the client has been closed.
func AwaitGoroutines() {
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit) && goleak.Find() != nil; {
	}
}
