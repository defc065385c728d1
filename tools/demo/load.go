package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// roleLoad is the role of the process that makes requests to the URL after it.
const roleLoad = "load"

// Each of loadWorkers makes a request, waits loadPause, and so on.
const (
	loadWorkers = 8
	loadPause   = 8 * time.Millisecond
	loadTimeout = 5 * time.Second
)

// request is one request that was made under load.
type request struct {
	start  time.Time
	server string // that answered; "" when none did
	err    string // why none did
}

// String is a line that parseRequest reads.
func (r request) String() string {
	return fmt.Sprintf("%d\t%s\t%s", r.start.UnixNano(), r.server, strings.ReplaceAll(r.err, "\n", " "))
}

func parseRequest(line string) (request, error) {
	fields := strings.SplitN(line, "\t", 3)
	if len(fields) != 3 {
		return request{}, fmt.Errorf("request %q: %d fields, not 3", line, len(fields))
	}
	start, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return request{}, fmt.Errorf("request %q: %w", line, err)
	}
	return request{time.Unix(0, start), fields[1], fields[2]}, nil
}

// load makes requests, each on a connection of its own, and prints them until it
// is sent SIGTERM.
func load(url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	client := &http.Client{Timeout: loadTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	var workers sync.WaitGroup
	for range loadWorkers {
		workers.Go(func() {
			for ctx.Err() == nil {
				fmt.Println(ask(client, url))
				time.Sleep(loadPause)
			}
		})
	}
	workers.Wait()
	return nil
}

// ask makes a request and reads the name of the server that answers it.
func ask(client *http.Client, url string) request {
	r := request{start: time.Now()}
	response, err := client.Get(url)
	if err != nil {
		r.err = err.Error()
		return r
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.err = err.Error()
		return r
	}
	name, _, answered := strings.Cut(string(body), " ")
	if response.StatusCode != http.StatusOK || !answered {
		r.err = fmt.Sprintf("%s: %q", response.Status, body)
		return r
	}
	r.server = name
	return r
}

// loader is a load process at work.
type loader struct {
	cmd  *exec.Cmd
	read chan error // gets what ended the reading of its output

	mu       sync.Mutex
	requests []request
}

// startLoad makes requests from a pod until the loader is stopped.
func (s *stage) startLoad(ctx context.Context, from, url string) (*loader, error) {
	cmd, err := s.self(ctx, from, roleLoad, url)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l := &loader{cmd: cmd, read: make(chan error, 1)}
	go func() { l.read <- l.collect(out) }()
	return l, nil
}

func (l *loader) collect(out io.Reader) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		r, err := parseRequest(lines.Text())
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.requests = append(l.requests, r)
		l.mu.Unlock()
	}
	return lines.Err()
}

// stop lets the requests at work end and returns all.
func (l *loader) stop() ([]request, error) {
	err := errors.Join(l.cmd.Process.Signal(unix.SIGTERM), <-l.read, l.cmd.Wait())
	return l.requests, err
}

// tally is what became of some requests.
type tally struct {
	total   int
	failed  int
	failure string         // the first
	servers map[string]int // answered, by server
}

// count tallies the requests that were started in [from, to).
func count(requests []request, from, to time.Time) tally {
	t := tally{servers: make(map[string]int)}
	for _, r := range requests {
		if r.start.Before(from) || !r.start.Before(to) {
			continue
		}
		t.total++
		switch {
		case r.server != "":
			t.servers[r.server]++
		case t.failed == 0:
			t.failure = r.err
			fallthrough
		default:
			t.failed++
		}
	}
	return t
}

// lastTo returns the start of the last request that the server answered.
func lastTo(server string, requests []request) time.Time {
	var last time.Time
	for _, r := range requests {
		if r.server == server && r.start.After(last) {
			last = r.start
		}
	}
	return last
}
