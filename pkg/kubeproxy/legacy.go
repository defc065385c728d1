package kubeproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flock"
)

// Socket options of linux/netfilter_ipv4/ip_tables.h; those of IPv6 have the same
// numbers.
const (
	xtSetReplace     = 64
	xtSetAddCounters = 65
	xtGetInfo        = 64
	xtGetEntries     = 65
)

// legacyFamily is one of the two iptables-legacy.
type legacyFamily struct {
	name     string
	tables   string // lists the tables that are in use in this network namespace
	domain   int
	protocol int
	layout   xtLayout
}

var legacyFamilies = []legacyFamily{
	{"iptables-legacy", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.IPPROTO_IP, xtLayout4},
	{"ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6, xtLayout6},
}

// inUse returns the tables of the family in which kube-proxy makes chains. Asking
// for one that is not in use would make it.
func (f legacyFamily) inUse() ([]string, error) {
	text, err := os.ReadFile(f.tables)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: list the tables: %w", f.name, err)
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(name string) bool {
		_, ours := chains[name]
		return !ours
	}), nil
}

// xtablesLock is the file by which the programs of iptables-legacy keep out of each
// other's way.
const xtablesLock = "/run/xtables.lock"

// lockTime is how long to wait for the lock: longer than iptables-restore has it for the rules of many Services. A
// program that hangs has it for ever.
const lockTime = 30 * time.Second

// lockXtables takes the lock and waits for it until ctx ends, for lockTime at most. Where there is no such
// folder, as in a container without the host's, no program shares it.
func lockXtables(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(xtablesLock, os.O_CREATE|os.O_RDONLY, 0o600)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("iptables-legacy: open the lock: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockTime, fmt.Errorf("for more than %s", lockTime))
	defer cancel()
	if err := flock.Exclusive(ctx, file); err != nil {
		file.Close()
		return nil, fmt.Errorf("iptables-legacy: %w", err)
	}
	return func() { file.Close() }, nil
}

// legacySession is a socket to iptables-legacy of one family.
type legacySession struct {
	legacyFamily
	fd int
}

func openLegacy(f legacyFamily) (*legacySession, error) {
	// Any socket of the family will do, and this kind needs no CAP_NET_RAW.
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: open a socket: %w", f.name, err)
	}
	return &legacySession{f, fd}, nil
}

func (s *legacySession) close() { unix.Close(s.fd) }

// xtInfo is struct ipt_getinfo.
type xtInfo struct {
	Name       [xtTableName]byte
	ValidHooks uint32
	HookEntry  [xtHooks]uint32
	Underflow  [xtHooks]uint32
	Entries    uint32
	Size       uint32
}

// info returns how much a table has.
func (s *legacySession) info(name string) (*xtInfo, error) {
	var info xtInfo
	copy(info.Name[:], name)
	request := make([]byte, binary.Size(info))
	if _, err := binary.Encode(request, binary.NativeEndian, info); err != nil {
		return nil, err
	}
	if err := s.getOption(xtGetInfo, request); err != nil {
		return nil, fmt.Errorf("%s: table %s: %w", s.name, name, err)
	}
	if _, err := binary.Decode(request, binary.NativeEndian, &info); err != nil {
		return nil, err
	}
	return &info, nil
}

// natRules returns how many rules the table nat has. That has a policy for each of its hooks, too,
// and an entry at its end.
func (f legacyFamily) natRules() (int, error) {
	names, err := f.inUse()
	if err != nil || !slices.Contains(names, "nat") {
		return 0, err
	}
	s, err := openLegacy(f)
	if err != nil {
		return 0, err
	}
	defer s.close()
	info, err := s.info("nat")
	if err != nil {
		return 0, err
	}
	return int(info.Entries) - bits.OnesCount32(info.ValidHooks) - 1, nil
}

// read returns a table.
func (s *legacySession) read(name string) (*xtTable, error) {
	info, err := s.info(name)
	if err != nil {
		return nil, err
	}
	// struct ipt_get_entries: the name, the size, and the entries, aligned.
	const header = 40
	reply := make([]byte, header+int(info.Size))
	copy(reply, info.Name[:])
	binary.NativeEndian.PutUint32(reply[xtTableName:], info.Size)
	if err := s.getOption(xtGetEntries, reply); err != nil {
		return nil, fmt.Errorf("%s: read table %s: %w", s.name, name, err)
	}
	t, err := newTable(name, s.layout, info, reply[header:])
	if err != nil {
		return nil, fmt.Errorf("%s: table %s: %w", s.name, name, err)
	}
	return t, nil
}

// write replaces the table by the one without what was dropped. The kernel refuses
// with EAGAIN when rules were added or removed since the table was read.
func (s *legacySession) write(t *xtTable) error {
	old := make([]byte, t.before*xtCounterSize)
	request, err := t.replacement(old)
	if err != nil {
		return err
	}
	err = s.setOption(xtSetReplace, request)
	runtime.KeepAlive(old)
	if err != nil {
		return fmt.Errorf("%s: replace table %s: %w", s.name, t.tableName, err)
	}
	if err := s.setOption(xtSetAddCounters, t.addCounters(old)); err != nil {
		return fmt.Errorf("%s: set the counters of table %s: %w", s.name, t.tableName, err)
	}
	return nil
}

// replacement returns a struct ipt_replace. The kernel writes into old the counters
// of all entries there were.
func (t *xtTable) replacement(old []byte) ([]byte, error) {
	blob, hookEntry, underflow := t.next()
	var name [xtTableName]byte
	copy(name[:], t.tableName)
	var request bytes.Buffer
	for _, field := range []any{
		name, t.validHooks, uint32(t.remaining()), uint32(len(blob)), hookEntry, underflow,
		uint32(t.before), uint64(uintptr(unsafe.Pointer(unsafe.SliceData(old)))), blob,
	} {
		if err := binary.Write(&request, binary.NativeEndian, field); err != nil {
			return nil, err
		}
	}
	return request.Bytes(), nil
}

// addCounters returns a struct xt_counters_info with the counters of the entries
// that stay.
func (t *xtTable) addCounters(old []byte) []byte {
	info := make([]byte, xtTableName+8)
	copy(info, t.tableName)
	binary.NativeEndian.PutUint32(info[xtTableName:], uint32(t.remaining()))
	for _, e := range t.entries {
		var counter [xtCounterSize]byte
		if e.offset >= 0 {
			copy(counter[:], old)
			old = old[xtCounterSize:]
		}
		if !e.dropped {
			info = append(info, counter[:]...)
		}
	}
	return info
}

func (s *legacySession) getOption(option uintptr, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.protocol), option,
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (s *legacySession) setOption(option uintptr, buf []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), uintptr(s.protocol), option,
		uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
