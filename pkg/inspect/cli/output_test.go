package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestListMemory: a list as JSON takes little memory beside what it lists, for the agent's limit may be that of
// the command, and it is what encoding/json makes of it.
func TestListMemory(t *testing.T) {
	tier.OneGoroutine(t)
	var list []served
	for i := range 200 {
		service := fmt.Sprintf("shop/web-%d", i)
		endpoints := make([]model.Endpoint, 100)
		for k := range endpoints {
			endpoints[k] = ready(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k)}).String(), "node-b")
		}
		list = append(list, served{
			&model.Service{
				Name: name(service), Type: "ClusterIP", ClusterIPs: addrs(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()),
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
			},
			[]*model.Slice{slice(service, "", model.TCP, 8080, endpoints...)},
		})
	}
	bpffs, _ := pinned(t, list)
	d, err := inspect.Open(bpffs)
	check(t, err)
	defer d.Close()
	for kind, read := range map[string]func() (any, error){
		"service": func() (any, error) { return d.Services() },
		"backend": func() (any, error) { return d.Backends() },
	} {
		var listed any
		once := bounds.Allocated(func() { listed, err = read() })
		check(t, err)
		var out bytes.Buffer
		run := func(to io.Writer) {
			if code := cli.Run(t.Context(), cli.Env{Out: to, Err: t.Output(), Now: time.Now}, "--bpffs", bpffs, kind, "list", "-o", "json"); code != cli.ExitOK {
				t.Errorf("%s list: exit code %d", kind, code)
			}
		}
		if used := bounds.Allocated(func() { run(io.Discard) }); used > once+8<<20 {
			t.Errorf("%s list -o json took %d bytes of memory, what it lists %d", kind, used, once)
		}
		run(&out)
		want, err := json.MarshalIndent(listed, "", "  ")
		check(t, err)
		if out.String() != string(want)+"\n" {
			t.Errorf("%s list -o json is not what encoding/json makes of it", kind)
		}
	}
}
