package report

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os/exec"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// agent is one that has pinned maps, whether it runs or not.
type agent struct{ bpffs string }

// Agent returns the parts that tell of the agent: the configuration that it has noted, its pages
// and its log. Neither its files nor its environment are read, which may have secrets.
func Agent(bpffs string) []Part {
	a := agent{bpffs}
	return []Part{
		{"config.yaml", whole(a.config)},
		{"cgroup.txt", whole(a.cgroup)},
		{"health.txt", whole(a.health)},
		{"configz.json", whole(a.metricsPage("/configz"))},
		{"metrics.txt", whole(a.metricsPage("/metrics"))},
		{"log.txt", whole(logText)},
	}
}

// status calls fn with what the agent has told of itself.
func (a agent) status(fn func(statusmap.Table) error) error {
	maps, err := bpfmap.OpenReadable(datapath.Dir(a.bpffs))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("no agent has served this node since it was started")
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(statusmap.New(maps)), maps.Close())
}

// config returns the configuration that the agent has noted. It names files with secrets and has
// none of them.
func (a agent) config(context.Context) (text []byte, err error) {
	err = a.status(func(s statusmap.Table) error {
		if text = s.Config(); len(text) == 0 {
			return errors.New("the agent has not noted its configuration")
		}
		return nil
	})
	return text, err
}

// settings returns the configuration as the agent has understood it.
func (a agent) settings(ctx context.Context) (*config.Settings, error) {
	text, err := a.config(ctx)
	if err != nil {
		return nil, err
	}
	noted, err := config.Decode("the configuration noted by the agent", text)
	if err != nil {
		return nil, err
	}
	return noted.Settings()
}

// cgroup lists the programs where sockets are served.
func (a agent) cgroup(context.Context) (text []byte, err error) {
	err = a.status(func(s statusmap.Table) error {
		path := s.Agent().Cgroup
		if path == "" {
			return errors.New("no agent has told which cgroup it serves")
		}
		var err error
		text, err = cgroupText(path)
		return err
	})
	return text, err
}

// health returns what the agent tells probes.
func (a agent) health(ctx context.Context) ([]byte, error) {
	s, err := a.settings(ctx)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, path := range []string{"/healthz", "/livez", "/startupz"} {
		status, body, err := a.get(ctx, s.HealthzAddress, path)
		if err != nil {
			return out.Bytes(), err
		}
		fmt.Fprintf(&out, "%s: %s\n%s\n", path, status, bytes.TrimSpace(body))
	}
	return out.Bytes(), nil
}

// metricsPage reads a page where the agent serves its metrics.
func (a agent) metricsPage(path string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		s, err := a.settings(ctx)
		if err != nil {
			return nil, err
		}
		status, body, err := a.get(ctx, s.MetricsAddress, path)
		if err == nil && status != "200 OK" {
			err = fmt.Errorf("%s: %s", path, status)
		}
		return body, err
	}
}

// get asks the agent for a page, while it runs: else its port may be another program's. The
// calling thread connects, for the network namespace is its own.
func (a agent) get(ctx context.Context, address, path string) (status string, body []byte, err error) {
	if _, running, err := datapath.Running(a.bpffs); err != nil || !running {
		return "", nil, errors.Join(err, errors.New("no agent runs that could be asked"))
	}
	if address == "" {
		return "", nil, errors.New("the configuration has the page switched off")
	}
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().IsUnspecified() {
		loopback := netip.IPv6Loopback()
		if at.Addr().Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		address = netip.AddrPortFrom(loopback, at.Port()).String()
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", nil, err
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return "", nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return "", nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxPart+1))
	return response.Status, body, err
}

// elsewhere says how to get the log where it is not in the journal.
const elsewhere = "please add it to the report: in a cluster, kubectl -n kube-system logs POD --tail=2000, " +
	"and with --previous when the agent was restarted; else it is where the agent's standard error goes"

// logText returns the end of the agents' log from systemd's journal.
func logText(ctx context.Context) ([]byte, error) {
	path, err := exec.LookPath("journalctl")
	if err != nil {
		return nil, errors.New("the log cannot be read from here, which has no journald; " + elsewhere)
	}
	cmd := exec.CommandContext(ctx, path, "--quiet", "--no-pager", "--output=short-iso-precise", "--lines=2000", "_COMM=beeline-agent")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return tail(out.Bytes(), maxLog), fmt.Errorf("journalctl: %w: %s; %s", err, bytes.TrimSpace(errs.Bytes()), elsewhere)
	}
	if out.Len() == 0 {
		return nil, errors.New("the journal has nothing of the agent; " + elsewhere)
	}
	return tail(out.Bytes(), maxLog), nil
}
