package libxdp

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to load BPF programs")
	}
}

func TestConfig(t *testing.T) {
	needRoot(t)
	frags := Component{Priority: 10, Next: 1 << 2, Flags: unix.BPF_F_XDP_HAS_FRAGS}
	none := Component{Priority: 50, Next: 1<<2 | 1<<1}
	for version := range configSizes {
		for _, c := range []struct {
			components []Component
			frags      uint8
		}{
			{[]Component{frags}, 1},
			{[]Component{frags, none}, 0},
		} {
			program, err := load(version, c.components)
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			got, err := readConfig(program)
			if err != nil {
				t.Fatal(err)
			}
			want := dispatcherConfig{Magic: 236, Version: version, Count: uint8(len(c.components)), Frags: c.frags}
			for i := range want.Next {
				want.Next[i] = 1 << 31
			}
			for i, c := range c.components {
				want.Next[i] |= c.Next
				want.Priority[i], want.Flags[i] = c.Priority, c.Flags
			}
			if got != want {
				t.Errorf("settings are %+v, want %+v", got, want)
			}
		}
	}
}

func TestNoRoom(t *testing.T) {
	_, err := load(2, make([]Component, 11))
	if !errors.As(err, &ForeignError{}) {
		t.Errorf("11 programs: got %v, want a ForeignError", err)
	}
}

// TestForeign reads the settings of programs that are no dispatchers, or of other versions.
func TestForeign(t *testing.T) {
	needRoot(t)
	bound := make([]byte, 128)
	bound[0], bound[1], bound[124] = magic, 3, 1
	for _, c := range []struct {
		name   string
		value  []byte
		reason string
	}{
		{"firewall", []byte{magic, 2}, "no dispatcher of libxdp"},
		{"xdp_dispatcher", make([]byte, 84), "dispatcher of version 1"},
		{"xdp_dispatcher", append([]byte{magic, 4}, make([]byte, 126)...), "dispatcher of version 4"},
		{"xdp_dispatcher", append([]byte{magic, 2}, make([]byte, 126)...), "dispatcher of version 2"},
		{"xdp_dispatcher", bound, "it is bound to the device"},
		{"xdp_dispatcher", append([]byte{magic, 2, 11}, make([]byte, 121)...), "dispatcher of 11 programs"},
	} {
		_, err := readConfig(withSettings(t, c.name, c.value))
		if err == nil || err.Error() != c.reason {
			t.Errorf("%s with %d bytes: got %v, want %q", c.name, len(c.value), err, c.reason)
		}
	}
}

// withSettings loads a program that has a map with this value.
func withSettings(t *testing.T, name string, value []byte) *ebpf.Program {
	t.Helper()
	settings, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer settings.Close()
	if err := settings.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, settings.FD()), asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}
