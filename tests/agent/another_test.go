package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
)

// asked is what the command beeline says.
type asked struct {
	out, errs string
	code      int
}

func ask(t *testing.T, h *lab.Host, args ...string) asked {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Run(context.Background(), cli.Env{Out: &out, Err: &errs, Now: time.Now}, append([]string{"--bpffs", h.BPFFS}, args...)...)
	return asked{out.String(), errs.String(), code}
}

// want checks a part of what was printed and all tables that were named as left out.
func (a asked) want(t *testing.T, code int, part string, unread ...string) {
	t.Helper()
	if a.code != code || !strings.Contains(a.out+a.errs, part) {
		t.Errorf("exit code %d, want %d; wanted %q in\n%s%s", a.code, code, part, a.out, a.errs)
	}
	for _, name := range unread {
		if !strings.Contains(a.errs, name+" (") {
			t.Errorf("%s is not named: %s", name, a.errs)
		}
	}
	if len(unread) == 0 && code == cli.ExitOK && a.errs != "" {
		t.Errorf("it complains: %s", a.errs)
	}
}

// TestCommandOfAnotherVersion: the command beeline names the tables that another version has pinned in
// another layout and reads the others. It changes nothing then.
func TestCommandOfAnotherVersion(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	mustReach(t, h, "tcp4", stickyTCP)
	s.Signal(unix.SIGKILL)
	_ = s.Wait() // killed
	dir := datapath.Dir(h.BPFFS)
	newer := func(name string) (back func()) {
		t.Helper()
		pin := filepath.Join(dir, name)
		if err := os.Rename(pin, pin+"-9"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.Rename(pin+"-9", pin); err != nil {
				t.Error(err)
			}
		}
	}
	ask(t, h, "service", "list").want(t, cli.ExitOK, "sticky")

	back := newer("bl_flow")
	ask(t, h, "service", "list").want(t, cli.ExitOK, "sticky", "bl_flow")
	ask(t, h, "service", "show", "default/web").want(t, cli.ExitOK, "10.96.0.1", "bl_flow")
	ask(t, h, "status").want(t, cli.ExitOK, "2 services", "bl_flow")
	ask(t, h, "flow", "list").want(t, cli.ExitFailure, "layout 9 of it, this one has 1", "bl_flow")
	ask(t, h, "flow", "delete", "--all").want(t, cli.ExitFailure, "after 0 deleted flows", "bl_flow")
	ask(t, h, "explain", "10.96.0.1:80").want(t, cli.ExitFailure, "use the beeline command of the agent's version", "bl_flow")
	ask(t, h, "monitor").want(t, cli.ExitFailure, "use the beeline command of the agent's version")
	ask(t, h, "verify").want(t, cli.ExitFailure, "layout 9 of it, this one has 1")
	back()

	for _, name := range []string{"bl_client", "bl_new_client"} {
		back = newer(name)
		ask(t, h, "affinity", "list").want(t, cli.ExitOK, "netns:", name)
		back()
	}
	back = newer("bl_affinity")
	ask(t, h, "affinity", "list").want(t, cli.ExitFailure, "layout 9 of it, this one has 1", "bl_affinity")
	back()

	back = newer("bl_backend")
	ask(t, h, "service", "list").want(t, cli.ExitFailure, "layout 9 of it, this one has 1", "bl_backend")
	ask(t, h, "flow", "list").want(t, cli.ExitOK, "PROTOCOL", "bl_backend")
	ask(t, h, "node", "list").want(t, cli.ExitOK, "", "bl_backend")
	ask(t, h, "status").want(t, cli.ExitOK, "what cannot be read", "bl_backend")
	var status inspect.Status
	if err := json.Unmarshal([]byte(ask(t, h, "status", "-o", "json").out), &status); err != nil || len(status.Unread) != 1 || status.Unread[0].Map != "bl_backend" {
		t.Errorf("the status has %+v, %v", status.Unread, err)
	}
	back()

	ask(t, h, "flow", "delete", "--all").want(t, cli.ExitOK, "deleted 0 flows")
}

// TestCommandOfNewerVersion: what a former version has pinned is read, in whichever layout.
func TestCommandOfNewerVersion(t *testing.T) {
	t.Parallel()
	lab.EachFormerAgent(t, func(t *testing.T, changed, binary string) {
		h := lab.NewHost(t)
		h.ServeBackends()
		s := h.NewStandalone(web, webSlice, sticky, stickySlice)
		s.Former = binary
		s.Start()
		const some = 3
		for range some {
			mustReach(t, h, "tcp4", webTCP)
		}
		for _, command := range []string{"status", "flow list", "node list", "affinity list", "frontend list", "backend list", "service show default/sticky"} {
			if a := ask(t, h, strings.Fields(command)...); a.code != cli.ExitOK || strings.Contains(a.errs, changed) {
				t.Errorf("%s: exit code %d: %s", command, a.code, a.errs)
			}
		}
		a := ask(t, h, "service", "list", "-o", "json")
		var services []inspect.Service
		if err := json.Unmarshal([]byte(a.out), &services); err != nil || len(services) != 2 || services[1].Connections != some {
			t.Errorf("%v: %s%s", err, a.out, a.errs)
		}
		if a := ask(t, h, "flow", "delete", "--all"); a.code != cli.ExitFailure || !strings.Contains(a.errs, changed) {
			t.Errorf("flow delete: exit code %d: %s%s", a.code, a.out, a.errs)
		}
	})
}
