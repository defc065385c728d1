package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stepTime is how long requests go on before the next thing happens.
const stepTime = 700 * time.Millisecond

// leave shows a pod's end under load, as a rolling update brings it about: it is
// marked as terminating, taken out of the EndpointSlice, and its process ends.
func (p *play) leave(ctx context.Context) error {
	p.scene("A server leaves while requests go on")
	download, err := p.startDownload(ctx)
	if err != nil {
		return err
	}
	leaver := webServers[slices.IndexFunc(webServers, func(w pod) bool { return w.name == download.server })]
	load, err := p.startLoad(ctx, clients[1].name, p.web.url())
	if err != nil {
		return err
	}
	times, err := p.retire(ctx, leaver, download)
	if err != nil {
		return err
	}
	requests, err := load.stop()
	if err != nil {
		return err
	}
	p.phases(requests, append(times, phase{start: time.Now()}))
	all, after := count(requests, time.Time{}, time.Now()), count(requests, times[1].applied, time.Now())
	p.claim(all.failed == 0, "%d requests, %d failed%s", all.total, all.failed, because(all))
	p.claim(after.total > 0 && after.servers[leaver.name] == 0, "no new connection to %s once it is terminating: the last was made %s",
		leaver.name, delay(times[1].start, lastTo(leaver.name, requests)))
	p.claim(download.complete, "the download from %s went on to its end", leaver.name)
	return p.beeline(ctx, "service", "show", "default/web")
}

// phase is what one step of a scene was followed by.
type phase struct {
	title   string
	start   time.Time
	applied time.Time // when the tables had it
}

// retire takes a web server out of service step by step.
func (p *play) retire(ctx context.Context, leaver pod, d *download) ([]phase, error) {
	line := endpointLine(leaver.addr)
	rest := make(map[string]bool)
	for _, w := range webServers {
		if w != leaver {
			rest[w.addr] = true
		}
	}
	phases := []phase{{title: "all three", start: time.Now()}}
	if err := sleep(ctx, stepTime); err != nil {
		return nil, err
	}
	steps := []struct{ title, from, to string }{
		{leaver.name + " terminating", line, line + terminating},
		{leaver.name + " not in the slice", line + terminating, ""},
	}
	for _, step := range steps {
		now := phase{title: step.title, start: time.Now()}
		if err := replaceInManifests(p.manifests(), step.from, step.to); err != nil {
			return nil, err
		}
		if err := wait(ctx, step.title+" to be applied", func() error { return p.leadsTo("web", rest) }); err != nil {
			return nil, err
		}
		now.applied = time.Now()
		phases = append(phases, now)
		if err := sleep(ctx, stepTime); err != nil {
			return nil, err
		}
	}
	if err := d.wait(); err != nil {
		return nil, err
	}
	phases = append(phases, phase{title: leaver.name + " has exited", start: time.Now()})
	if err := p.stopWebServer(leaver); err != nil {
		return nil, err
	}
	return phases, sleep(ctx, stepTime)
}

func (p *play) stopWebServer(w pod) error {
	server := p.servers[w.name]
	delete(p.servers, w.name)
	if err := server.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if err := server.Wait(); err != nil {
		return fmt.Errorf("web server %s: %w", w.name, err)
	}
	return nil
}

// phases prints how the requests of each phase were answered. The last one only
// marks the end.
func (p *play) phases(requests []request, phases []phase) {
	fmt.Fprintf(p.out, "\n     %-24s %8s %7s", "WHILE", "REQUESTS", "FAILED")
	for _, w := range webServers {
		fmt.Fprintf(p.out, " %6s", w.name)
	}
	fmt.Fprintln(p.out)
	for i, from := range phases[:len(phases)-1] {
		t := count(requests, from.start, phases[i+1].start)
		fmt.Fprintf(p.out, "     %-24s %8d %7d", from.title, t.total, t.failed)
		for _, w := range webServers {
			fmt.Fprintf(p.out, " %6d", t.servers[w.name])
		}
		fmt.Fprintln(p.out)
	}
}

func because(t tally) string {
	if t.failed == 0 {
		return ""
	}
	return ": " + t.failure
}

func delay(from, to time.Time) string {
	if to.Before(from) {
		return "before that"
	}
	return to.Sub(from).Round(100*time.Microsecond).String() + " after the file changed"
}

// download is a long request under way.
type download struct {
	server   string // that serves it
	complete bool
	cmd      *exec.Cmd
	out      *bufio.Reader
}

// startDownload returns when the first line has arrived.
func (p *play) startDownload(ctx context.Context) (*download, error) {
	url := p.web.url() + "download"
	p.prompt(clients[0].name, "curl --silent --no-buffer "+url)
	cmd := p.in(ctx, clients[0].name, "curl", "--silent", "--no-buffer", url)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &download{cmd: cmd, out: bufio.NewReader(out)}
	name, err := d.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", url, err)
	}
	d.server = strings.TrimSpace(name)
	p.say("%s serves it, line by line; so %s is the one to leave.", d.server, d.server)
	return d, nil
}

// wait waits for the end, good or bad.
func (d *download) wait() error {
	rest, err := io.ReadAll(d.out)
	if err != nil {
		return err
	}
	d.complete = d.cmd.Wait() == nil && strings.HasSuffix(string(rest), downloadEnd+"\n")
	return nil
}
