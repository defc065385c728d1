package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// runner makes connections to the targets by turns.
type runner struct {
	targets  []string
	shorts   []string // of short requests only
	long     int
	sockets  int
	sizes    []int // of datagrams
	largest6 int   // of those by IPv6; 0: any
	rate     int
	lifetime time.Duration
	listen   string

	count counters
}

// pause is the time between two requests on a long connection.
const pause = 250 * time.Millisecond

func newRun() *cobra.Command {
	r := &runner{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make requests and count those that fail; GET /stats tells",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&r.targets, "targets", nil, "URLs to ask, by turns")
	f.StringSliceVar(&r.shorts, "short-targets", nil, "URLs that short requests ask, too; udp://HOST:PORT by a datagram")
	f.IntVar(&r.long, "long", 0, "connections that are kept, with a request four times a second")
	f.IntVar(&r.sockets, "sockets", 0, "UDP sockets that are kept, with a request four times a second to a target of udp://")
	f.IntSliceVar(&r.sizes, "sizes", []int{0}, "bytes of the datagrams that short requests send, by turns; 0 for as few as can be")
	f.IntVar(&r.largest6, "largest6", 0, "at most so many bytes of those by IPv6 (0: no limit)")
	f.IntVar(&r.rate, "rate", 0, "short requests a second, each with a connection or socket of its own")
	f.DurationVar(&r.lifetime, "lifetime", 0, "age at which a long connection is closed and another made (0: never)")
	f.StringVar(&r.listen, "listen", ":9000", "address and port of /stats")
	return cmd
}

func (r *runner) run(ctx context.Context) error {
	if len(r.targets) == 0 {
		return fmt.Errorf("--targets is missing")
	}
	var wg sync.WaitGroup
	for i := range r.long {
		target := r.targets[i%len(r.targets)]
		wg.Go(func() { r.keepLong(ctx, target) })
	}
	datagrams := slices.DeleteFunc(slices.Clone(r.shorts), func(target string) bool { return !strings.HasPrefix(target, datagramScheme) })
	if len(datagrams) == 0 && r.sockets > 0 {
		return fmt.Errorf("--sockets without a target of udp://")
	}
	for i := range r.sockets {
		target := datagrams[i%len(datagrams)]
		wg.Go(func() { r.keepDatagrams(ctx, target) })
	}
	wg.Go(func() { r.makeShort(ctx, &wg) })
	http.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(r.count.read()) // the reader sees it
	})
	server := http.Server{Addr: r.listen}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	err := server.ListenAndServe()
	if ctx.Err() != nil {
		wg.Wait()
		return nil
	}
	return err
}

// keepLong keeps one connection at a time until ctx ends.
func (r *runner) keepLong(ctx context.Context, target string) {
	for ctx.Err() == nil {
		conn, err := dial(target)
		if err != nil {
			r.count.failed("long", target, err)
			time.Sleep(pause)
			continue
		}
		if server, err := r.useLong(ctx, conn, target); err != nil {
			r.count.broken(loadstats.Path{Target: target, Server: server}, err)
		}
		conn.Close()
	}
}

// useLong asks again and again over one connection, which must always lead to the
// same server, until it has its age. It returns the server's name.
func (r *runner) useLong(ctx context.Context, conn net.Conn, target string) (server string, err error) {
	r.count.opened(1)
	defer r.count.opened(-1)
	replies := bufio.NewReader(conn)
	for born := time.Now(); ctx.Err() == nil && (r.lifetime == 0 || time.Since(born) < r.lifetime); {
		got, err := ask(conn, replies, target)
		if err != nil {
			return server, fmt.Errorf("after %s: %w", time.Since(born).Round(time.Millisecond), err)
		}
		if server == "" {
			server = got.Host
		}
		if got.Host != server {
			return server, fmt.Errorf("leads to %s, led to %s", got.Host, server)
		}
		r.count.answered(got, true)
		time.Sleep(pause)
	}
	return server, nil
}

// makeShort makes short connections at the rate until ctx ends.
func (r *runner) makeShort(ctx context.Context, wg *sync.WaitGroup) {
	if r.rate == 0 {
		return
	}
	tick := time.NewTicker(time.Second / time.Duration(r.rate))
	defer tick.Stop()
	targets := slices.Concat(r.targets, r.shorts)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		target := targets[i%len(targets)]
		if strings.HasPrefix(target, datagramScheme) {
			size := r.sizes[i/len(targets)%len(r.sizes)]
			if r.largest6 > 0 && strings.HasPrefix(target, datagramScheme+"[") {
				size = min(size, r.largest6)
			}
			wg.Go(func() { r.oneDatagram(target, size) })
			continue
		}
		wg.Go(func() { r.oneShort(target) })
	}
}

func (r *runner) oneShort(target string) {
	start := time.Now()
	conn, err := dial(target)
	if err == nil {
		defer conn.Close()
		var got answer
		if got, err = ask(conn, bufio.NewReader(conn), target); err == nil {
			r.count.answered(got, false)
		}
	}
	r.count.took(time.Since(start))
	if err != nil {
		r.count.failed("short", target, err)
	}
}

func dial(target string) (net.Conn, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	return net.DialTimeout("tcp", address, loadstats.Timeout)
}

// ask makes one request over a connection.
func ask(conn net.Conn, replies *bufio.Reader, target string) (answer, error) {
	var got answer
	if err := conn.SetDeadline(time.Now().Add(loadstats.Timeout)); err != nil {
		return got, err
	}
	req, err := http.NewRequest(http.MethodGet, target, nil)
	if err != nil {
		return got, err
	}
	if err := req.Write(conn); err != nil {
		return got, err
	}
	resp, err := http.ReadResponse(replies, req)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return got, fmt.Errorf("status %s", resp.Status)
	}
	return got, json.NewDecoder(resp.Body).Decode(&got)
}
