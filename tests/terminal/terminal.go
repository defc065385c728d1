// Package terminal runs a command in a terminal, so that a test sees the screen as a user does.
package terminal

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/wait"
)

// Terminal is a terminal in which a command runs.
type Terminal struct {
	t        *testing.T
	file     *os.File
	cmd      *exec.Cmd
	done     sync.WaitGroup
	mu       sync.Mutex // of emulator
	emulator *vt.Emulator
}

// Start starts a command in a terminal of its own. It is killed when the test ends.
func Start(t *testing.T, width, height int, cmd *exec.Cmd) *Terminal {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	fd := int(file.Fd())
	check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check(t, err)
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	s := &Terminal{t: t, file: file, cmd: cmd, emulator: vt.NewEmulator(width, height)}
	s.Resize(width, height)
	s.cmd.Env = append(s.cmd.Environ(), "TERM=xterm-256color")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = side, side, side
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check(t, s.cmd.Start())
	check(t, side.Close())
	s.done.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := file.Read(buffer)
			s.mu.Lock()
			s.emulator.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return // EIO: the command has ended
			}
		}
	})
	var replies sync.WaitGroup
	replies.Go(func() { io.Copy(file, s.emulator) }) // what the command asks the terminal
	t.Cleanup(func() {
		s.cmd.Process.Kill() // ended long ago, unless the test has failed
		s.cmd.Wait()
		s.done.Wait()
		check(t, s.emulator.InputPipe().(io.Closer).Close()) // Close of the emulator races with its Read
		replies.Wait()
		check(t, file.Close())
	})
	return s
}

// Resize gives the terminal another size.
func (s *Terminal) Resize(width, height int) {
	s.t.Helper()
	s.mu.Lock()
	s.emulator.Resize(width, height)
	s.mu.Unlock()
	check(s.t, unix.IoctlSetWinsize(int(s.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}))
}

// Press types keys.
func (s *Terminal) Press(keys string) {
	s.t.Helper()
	_, err := s.file.WriteString(keys)
	check(s.t, err)
}

// Text returns what is on the screen.
func (s *Terminal) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.emulator.String()
}

// IsAltScreen reports whether the command shows a screen of its own.
func (s *Terminal) IsAltScreen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.emulator.IsAltScreen()
}

// Shows waits until the screen has all parts, in this order.
func (s *Terminal) Shows(what string, parts ...string) {
	s.t.Helper()
	s.until(what, func() bool {
		rest := s.Text()
		for _, p := range parts {
			var found bool
			if _, rest, found = strings.Cut(rest, p); !found {
				return false
			}
		}
		return true
	})
}

// Matches waits until the screen matches a regular expression.
func (s *Terminal) Matches(what, pattern string) {
	s.t.Helper()
	match := regexp.MustCompile(pattern)
	s.until(what, func() bool { return match.MatchString(s.Text()) })
}

// Lacks waits until a text is not on the screen.
func (s *Terminal) Lacks(what, part string) {
	s.t.Helper()
	s.until(what, func() bool { return !strings.Contains(s.Text(), part) })
}

// Selected waits until the line of the cursor, which is in reverse video, has a text.
func (s *Terminal) Selected(what, part string) {
	s.t.Helper()
	s.until(what, func() bool {
		for y, line := range strings.Split(s.Text(), "\n") {
			if s.reversed(y) && strings.Contains(line, part) {
				return true
			}
		}
		return false
	})
}

func (s *Terminal) reversed(y int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	cell := s.emulator.CellAt(0, y)
	return cell != nil && cell.Style.Attrs&uv.AttrReverse != 0
}

func (s *Terminal) until(what string, done func() bool) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen of %q:\n%s", what, s.Text())
		}
	}()
	wait.Until(s.t, what, done)
}

// Ended waits until the command has ended.
func (s *Terminal) Ended(code int) {
	s.t.Helper()
	s.cmd.Wait()
	s.done.Wait()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
