package peers

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A clock beats at a fixed rate. The kernel keeps it: timers of Go are up to a millisecond late in a process that is
// otherwise idle. A beat wakes the process as a request does that arrives on a socket.
type clock struct{ *os.File }

func newClock(every time.Duration) (clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return clock{}, err
	}
	beat := unix.NsecToTimespec(int64(every))
	return clock{os.NewFile(uintptr(fd), "clock")}, unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: beat, Value: beat}, nil)
}

// await returns the number of beats since the last call, at least one.
func (c clock) await() (beats int, err error) {
	var n [8]byte
	_, err = c.Read(n[:])
	return int(binary.NativeEndian.Uint64(n[:])), err
}
