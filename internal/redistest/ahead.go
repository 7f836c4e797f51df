package redistest

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/ahead.c
var aheadC string

// StartAhead is Start, but the server's clock is d ahead of this machine's, or behind if d is
// negative. This needs Linux and a C compiler, cc: t is skipped where there is none.
func StartAhead(t testing.TB, d time.Duration, args ...string) *Server {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		t.Skipf("redistest: setting the clock of a server needs Linux and cc (this is %s, %v)", runtime.GOOS, err)
	}
	find(t)
	library := filepath.Join(t.TempDir(), "ahead.so")
	compile := exec.Command(cc, "-shared", "-fPIC", fmt.Sprintf("-DAHEAD=(%dLL)", d), "-o", library, "-x", "c", "-")
	compile.Stdin = strings.NewReader(aheadC)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("redistest: %v: %v\n%s", compile, err, out)
	}
	return start(t, "", args, "LD_PRELOAD="+library)
}
