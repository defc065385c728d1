package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Writes are the system calls of a program that change a map, a pin, a link or the name of a file.
type Writes struct {
	*Process
	count atomic.Int64
	ended chan struct{}
}

// WatchedWrites are the system calls of a program that are watched.
type WatchedWrites string

// The kinds of writes.
const (
	// BPFWrites write a map, a pin or a link, or change the name of a file.
	BPFWrites WatchedWrites = "bpf"
	// NetfilterWrites are messages by netlink, questions among them, and socket options, by
	// which the legacy tables of iptables are written.
	NetfilterWrites WatchedWrites = "netfilter"
)

// writeCommands are those of bpf(2) that change something.
var writeCommands = []uint32{
	unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM,
	unix.BPF_MAP_UPDATE_BATCH, unix.BPF_MAP_DELETE_BATCH, unix.BPF_OBJ_PIN,
	unix.BPF_PROG_ATTACH, unix.BPF_PROG_DETACH, unix.BPF_LINK_CREATE, unix.BPF_LINK_UPDATE, unix.BPF_LINK_DETACH,
}

// nameCalls are the system calls that change a name; see [unix.Rename].
var nameCalls = []uint32{unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT}

func init() {
	if runtime.GOARCH == "amd64" {
		nameCalls = append(nameCalls, 82, 83, 84, 87) // rename, mkdir, rmdir, unlink
	}
}

// netfilterCalls are the system calls that may change tables of netfilter.
var netfilterCalls = []uint32{unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SETSOCKOPT}

// watched is the argument that makes a test binary run a program whose writes are watched: their
// kind, the program's path and arguments follow.
const watched = "lab-watched"

// unwatched is the descriptor by which the listener is sent, of which no call is watched.
const unwatched = 1000

// StartWatched is [Namespace.Start] of a program whose writes are counted. It is killed
// when it is about to make the one of that number, from 1; 0 is never. The test binary calls
// [Main].
func (n *Namespace) StartWatched(writes WatchedWrites, kill int64, name string, args ...string) *Writes {
	n.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	own, theirs := os.NewFile(uintptr(pair[0]), "own"), os.NewFile(uintptr(pair[1]), "theirs")
	defer own.Close()
	defer theirs.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{watched, string(writes), name}, args...)...)
	cmd.ExtraFiles = []*os.File{theirs}
	w := &Writes{Process: n.start(cmd), ended: make(chan struct{})}
	theirs.Close()
	listener, err := receiveFile(own)
	if err != nil {
		n.t.Fatalf("watch %s: %v\n%s", name, err, w.Output())
	}
	go func() {
		defer close(w.ended)
		defer unix.Close(listener)
		w.serve(listener, kill)
	}()
	return w
}

// Count returns how many writes there were, when the program has ended all of them.
func (w *Writes) Count() int64 { return w.count.Load() }

// Killed waits until the program has ended and reports whether that was at its write.
func (w *Writes) Killed(kill int64) bool {
	_ = w.Wait() // was killed, or has ended by itself
	<-w.ended
	return w.count.Load() == kill
}

// notification is struct seccomp_notif, response is struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// serve lets writes pass and counts them, up to that at which it kills the program.
func (w *Writes) serve(listener int, kill int64) {
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return // nobody has the filter any more
		}
		var n notification
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
			continue // the caller has ended
		}
		if w.count.Add(1) == kill {
			w.Signal(unix.SIGKILL)
			<-w.done // before the listener is closed, which ends the call with an error
			return
		}
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // the caller may have ended
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// receiveFile receives a descriptor from the other end of a socket.
func receiveFile(socket *os.File) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	if len(messages) == 0 {
		return -1, net.ErrClosed
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// runWatched becomes a program whose writes are watched by who holds the other end of descriptor 3.
func runWatched(writes WatchedWrites, path string, args []string) error {
	runtime.LockOSThread()
	if err := unix.Dup3(3, unwatched, unix.O_CLOEXEC); err != nil {
		return err
	}
	filter := writeFilter(writes)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(unwatched, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	unix.CloseOnExec(int(listener))
	unix.CloseOnExec(3)
	return unix.Exec(path, append([]string{path}, args...), os.Environ())
}

// writeFilter asks for the calls that [Writes] counts and allows all others.
func writeFilter(writes WatchedWrites) []unix.SockFilter {
	const (
		nrOffset, argOffset = 0, 16 // of struct seccomp_data
		load                = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal               = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		result              = unix.BPF_RET | unix.BPF_K
	)
	// Each test is followed by what to do when it holds.
	match := func(values []uint32) (list []unix.SockFilter) {
		for _, v := range values {
			list = append(list, unix.SockFilter{Code: equal, K: v, Jf: 1}, unix.SockFilter{Code: result, K: unix.SECCOMP_RET_USER_NOTIF})
		}
		return list
	}
	allow := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW}
	number := unix.SockFilter{Code: load, K: nrOffset}
	if writes == NetfilterWrites {
		filter := []unix.SockFilter{{Code: load, K: argOffset}, {Code: equal, K: unwatched, Jf: 1}, allow, number}
		return append(append(filter, match(netfilterCalls)...), allow)
	}
	filter := append([]unix.SockFilter{number}, match(nameCalls)...)
	filter = append(filter, unix.SockFilter{Code: equal, K: unix.SYS_BPF, Jt: 1}, allow, unix.SockFilter{Code: load, K: argOffset})
	return append(append(filter, match(writeCommands)...), allow)
}
