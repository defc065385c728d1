package agent_test

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestOddDevice: an agent starts and serves beside a device that it cannot attach to, which is in
// its metrics and its status, and in its log once, however often it is tried again.
func TestOddDevice(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	if !lab.HaveTCX(t) {
		t.Skip("the kernel lacks tcx links, of which a device has only so many: they need Linux 6.6")
	}
	h.ServeBackends()
	h.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "odd0"}})
	var empty func()
	if err := h.Run(func() error {
		odd, err := netlink.LinkByName("odd0")
		if err != nil {
			return err
		}
		empty = lab.FillTCX(t, odd.Attrs().Index)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s := h.NewStandalone(web, webSlice)
	s.Start("--devices", "odd0")
	mustReach(t, h, "tcp4", webTCP)
	metric := func(line string) bool {
		page, err := h.Get("http://127.0.0.1:10249/metrics")
		return err == nil && strings.Contains(page, "\n"+line+"\n")
	}
	if !metric(`beeline_devices{role="clients",state="failed"} 1`) {
		t.Error("the device is not in the metrics")
	}
	lab.Eventually(t, "the device is tried again", func() bool {
		list := deviceFaults(t, h)
		return len(list) == 1 && list[0].Name == "odd0" && list[0].Tries > 2
	})
	if n := strings.Count(s.Output(), "Device is not served"); n != 1 {
		t.Errorf("the log tells of the device %d times", n)
	}
	empty()
	lab.Eventually(t, "the device is served", func() bool {
		return metric(`beeline_devices{role="clients",state="served"} 1`) && len(deviceFaults(t, h)) == 0
	})
	lab.Eventually(t, "the log tells that the device is served", func() bool {
		return strings.Contains(s.Output(), "Device is served now")
	})
	s.Signal(unix.SIGTERM)
	if err := s.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// deviceFaults returns what `beeline status` shows of devices that are not served.
func deviceFaults(t *testing.T, h *lab.Host) []devicemap.Fault {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	list, err := devicemap.New(maps).Faults()
	if err != nil {
		t.Fatal(err)
	}
	return list
}
