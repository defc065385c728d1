package bpfmap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// deviceFaultMap is written by the agent and read by people; the programs do not know it.
const deviceFaultMap = "bl_device_fault"

// MaxDeviceFaults is how many devices the map has room for.
const MaxDeviceFaults = 256

// deviceFaultEntry is a value of the map.
type deviceFaultEntry struct {
	Since, Next int64 // ns since the epoch
	Tries       uint32
	Name        [16]int8
	Role        [12]int8
	Error       [208]int8
}

func deviceFaultSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: deviceFaultMap, Type: ebpf.Hash, MaxEntries: MaxDeviceFaults,
		KeySize: 4, ValueSize: 256,
	}
}

// DeviceFault is a device that could not be attached to, and what it is for.
type DeviceFault struct {
	Ifindex int // 0: the devices could not be looked at
	Name    string
	Role    string
	Error   string
	Tries   int
	Since   time.Time
	Next    time.Time // when it is tried again
}

// DeviceFaults returns what SetDeviceFaults has written last, by name.
func (m *Maps) DeviceFaults() ([]DeviceFault, error) {
	var list []DeviceFault
	err := Each(m.DeviceFault, func(ifindex *uint32, e *deviceFaultEntry) {
		list = append(list, DeviceFault{
			Ifindex: int(*ifindex), Name: bpf.StringOf(e.Name[:]), Role: bpf.StringOf(e.Role[:]), Error: bpf.StringOf(e.Error[:]),
			Tries: int(e.Tries), Since: time.Unix(0, e.Since), Next: time.Unix(0, e.Next),
		})
	})
	slices.SortFunc(list, func(a, b DeviceFault) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Ifindex, b.Ifindex))
	})
	return list, err
}

// SetDeviceFaults replaces the faults by the first of these, as many as there is room for.
func (m *Maps) SetDeviceFaults(faults []DeviceFault) error {
	faults = faults[:min(len(faults), MaxDeviceFaults)]
	former, err := m.DeviceFaults()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range former {
		if !slices.ContainsFunc(faults, func(now DeviceFault) bool { return now.Ifindex == f.Ifindex }) {
			errs = append(errs, Remove(m.DeviceFault, uint32(f.Ifindex)))
		}
	}
	for _, f := range faults {
		e := deviceFaultEntry{Since: f.Since.UnixNano(), Next: f.Next.UnixNano(), Tries: uint32(f.Tries)}
		bpf.PutString(e.Name[:], f.Name)
		bpf.PutString(e.Role[:], f.Role)
		bpf.PutString(e.Error[:], f.Error)
		if err := m.DeviceFault.Put(uint32(f.Ifindex), &e); err != nil {
			errs = append(errs, fmt.Errorf("map %s: %w", deviceFaultMap, err))
		}
	}
	return errors.Join(errs...)
}
