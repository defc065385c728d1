package datapath

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flock"
	"github.com/beeline-lb/beeline/pkg/setting"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// lock keeps a second agent off a BPF file system. It is an advisory lock on the
// pins' folder, so it ends with the process that holds it, however that ends.
type lock struct {
	dir *os.File
}

// RunningError says that another agent has the pins.
type RunningError struct {
	Path string
	PID  int // 0 when it cannot be told, as from another pid namespace
}

// Error names the process.
func (e *RunningError) Error() string {
	return fmt.Sprintf("another agent (pid %d) runs on %s: stop it, or give this one another", e.PID, e.Path)
}

// lockPatience is how long to wait for a lock that may be that of a process which
// only looks whether an agent runs.
const lockPatience = 200 * time.Millisecond

func takeLock(bpffs string) (*lock, error) {
	dir, err := os.Open(root(bpffs))
	if err != nil {
		return nil, fmt.Errorf("lock the pins: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if err = flock.Exclusive(ctx, dir); errors.Is(err, unix.EWOULDBLOCK) {
		err = setting.Errorf("bpffs", "%w", &RunningError{Path: bpffs, PID: holder(dir, bpffs)})
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &lock{dir}, nil
}

// held reports whether the lock still keeps others off: the folder may have been removed, and another
// one made. The error says that it has only gone out of sight, with all pins.
func (l *lock) held(bpffs string) (bool, error) {
	var own, there unix.Stat_t
	if err := unix.Fstat(int(l.dir.Fd()), &own); err != nil {
		return false, fmt.Errorf("look at the locked folder: %w", err)
	}
	err := unix.Stat(root(bpffs), &there)
	if err == nil && own.Dev == there.Dev && own.Ino == there.Ino {
		return true, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look at %s: %w", root(bpffs), err)
	}
	if own.Nlink > 0 {
		return false, setting.Errorf("bpffs", "the pins are not at %s any more, the folder was renamed or something was mounted over it: undo that; "+
			"programs go on, but another agent could start beside this one", root(bpffs))
	}
	return false, nil
}

func (l *lock) release() error { return l.dir.Close() }

// Running reports whether an agent runs on the BPF file system, and its pid, 0
// when that cannot be told.
func Running(bpffs string) (pid int, running bool, err error) {
	dir, err := os.Open(root(bpffs))
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer dir.Close()
	err = unix.Flock(int(dir.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return holder(dir, bpffs), true, nil
	}
	return 0, false, err
}

// holder returns the pid of the process that holds the lock: from the kernel's
// list of locks, else what the agent wrote beside its maps.
func holder(dir *os.File, bpffs string) int {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err == nil {
		if pid := lockOwner(&stat); pid != 0 {
			return pid
		}
	}
	maps, err := bpfmap.OpenReadable(Dir(bpffs))
	if err != nil {
		return 0
	}
	defer maps.Close()
	return statusmap.New(maps).Agent().PID
}

// lockOwner looks an inode up in /proc/locks, whose lines are
// "1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF".
func lockOwner(stat *unix.Stat_t) int {
	file, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer file.Close()
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != inode {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
