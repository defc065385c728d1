package kernels_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/cgroup"
	"github.com/beeline-lb/beeline/tests/mounts"
)

// dialEnv makes the test binary a client: it connects to the address in this
// variable and exits with the error number, 0 when connected.
const dialEnv = "BEELINE_TEST_DIAL"

func TestMain(m *testing.M) {
	if target := os.Getenv(dialEnv); target != "" {
		os.Exit(dial(target))
	}
	os.Exit(mounts.Main(m))
}

func dial(target string) int {
	conn, err := net.Dial("tcp", target)
	if err == nil {
		conn.Close()
		return 0
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return int(errno)
	}
	fmt.Fprintln(os.Stderr, err)
	return 255
}

// TestConnectHook attaches a program to a cgroup by a link, replaces it in the
// link, and sees each do its work: set the error of connect(), and rewrite the
// destination.
func TestConnectHook(t *testing.T) {
	needRoot(t)
	cases := []struct {
		name    string
		attach  ebpf.AttachType
		server  string
		service string
		port    int16 // offset of the port in struct bpf_sock_addr
	}{
		{"IPv4", ebpf.AttachCGroupInet4Connect, "127.0.0.1:0", "127.0.0.1:1", 24},
		{"IPv6", ebpf.AttachCGroupInet6Connect, "[::1]:0", "[::1]:1", 24},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server, err := net.Listen("tcp", c.server)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			port := netip.MustParseAddrPort(server.Addr().String()).Port()

			group := cgroup.New(t)
			refuse := load(t, c.attach, asm.Instructions{
				asm.Mov.Imm(asm.R1, -int32(unix.EHOSTUNREACH)),
				asm.FnSetRetval.Call(),
				asm.Mov.Imm(asm.R0, 0),
				asm.Return(),
			})
			hook, err := link.AttachCgroup(link.CgroupOptions{Path: group, Attach: c.attach, Program: refuse})
			if err != nil {
				t.Fatal(err)
			}
			defer hook.Close()
			if _, err := hook.Info(); err != nil {
				t.Fatalf("the program is not attached by a link: %v", err)
			}
			if got := dialIn(t, group, c.service); got != unix.EHOSTUNREACH {
				t.Errorf("connect() with a refusing program: %v, want EHOSTUNREACH", got)
			}
			rewrite := load(t, c.attach, asm.Instructions{
				asm.Mov.Imm(asm.R2, int32(port)),
				asm.HostTo(asm.BE, asm.R2, asm.Half),
				asm.StoreMem(asm.R1, c.port, asm.R2, asm.Word),
				asm.Mov.Imm(asm.R0, 1),
				asm.Return(),
			})
			if err := hook.Update(rewrite); err != nil {
				t.Fatalf("replace the program: %v", err)
			}
			if got := dialIn(t, group, c.service); got != 0 {
				t.Errorf("connect() with a rewriting program: %v, want success", got)
			}
			if err := hook.Close(); err != nil {
				t.Fatal(err)
			}
			if got := dialIn(t, group, c.service); got != unix.ECONNREFUSED {
				t.Errorf("connect() after detaching: %v, want ECONNREFUSED", got)
			}
		})
	}
}

func load(t *testing.T, attach ebpf.AttachType, instructions asm.Instructions) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: attach, Instructions: instructions, License: "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

// dialIn connects to target from a process of its own in a cgroup and returns
// the error of connect().
func dialIn(t *testing.T, cgroup, target string) syscall.Errno {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	client := exec.Command("/proc/self/exe")
	client.Env = append(os.Environ(), dialEnv+"="+target)
	client.Stderr = os.Stderr
	client.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	err = client.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return syscall.Errno(client.ProcessState.ExitCode())
}
