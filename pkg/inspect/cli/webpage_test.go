package cli_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/browser"
)

// startWeb runs beeline web and returns the address that it tells.
func startWeb(t *testing.T, bpffs string) string {
	t.Helper()
	cmd := asCommand("web", "--bpffs", bpffs, "--listen", "127.0.0.1:0", "--interval", "200ms")
	out, err := cmd.StdoutPipe()
	check(t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	check(t, cmd.Start())
	t.Cleanup(func() {
		check(t, cmd.Process.Signal(os.Interrupt))
		if err := cmd.Wait(); err != nil || errs.Len() > 0 {
			t.Errorf("beeline web ended with %v, said %q", err, errs.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	check(t, err)
	url := regexp.MustCompile(`http://\S+/`).FindString(line)
	if url == "" {
		t.Fatalf("said %q", line)
	}
	return url
}

// TestWebSurvivesClients: browsers that are gone when their answer comes do not end the server.
func TestWebSurvivesClients(t *testing.T) {
	bpffs, _ := pinned(t, largeCluster(2000)) // so that answers take a while
	url := startWeb(t, bpffs)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	var clients []*net.TCPConn
	for range 20 {
		conn, err := net.Dial("tcp", address)
		check(t, err)
		_, err = fmt.Fprintf(conn, "GET /top HTTP/1.1\r\nHost: %s\r\n\r\n", address)
		check(t, err)
		clients = append(clients, conn.(*net.TCPConn))
	}
	time.Sleep(20 * time.Millisecond) // to be heard, of most
	for _, conn := range clients {
		check(t, conn.SetLinger(0)) // by a reset
		check(t, conn.Close())
	}
	for range 2 { // after those that were heard before
		answer, err := http.Get(url + "top")
		check(t, err)
		check(t, answer.Body.Close())
		if answer.StatusCode != http.StatusOK {
			t.Errorf("an answer: %s", answer.Status)
		}
	}
}

// refuse has shop/empty, and the reason no_endpoint, count n refusals more than the fixture.
func refuse(t *testing.T, bpffs string, n uint64) {
	t.Helper()
	counted(t, bpffs, emptyID, 0, n)
	perCPU := make([]uint64, cpus(t))
	perCPU[0] = 17 + n
	check(t, openMap(t, datapath.Dir(bpffs), "bl_counter").Put(uint32(0), perCPU))
}

// firstRow is the first Service of the list.
const firstRow = "#services tbody tr:first-child"

// TestWebPage drives the page in a real browser: it follows what is counted.
func TestWebPage(t *testing.T) {
	b := browser.New(t)
	bpffs := newDatapath(t)
	url := startWeb(t, bpffs)
	b.Window(1280, 900, "light")
	b.Open(url)
	b.Shows("the Services", "#services", "default/kubernetes", "kube-system/busy", "shop/web")
	b.Shows("the sums", "#sums", "connections a second", "0.0", "Services", "8")
	b.Shows("a rate", "#reading", "read at", "rates over")
	b.Shows("nothing refused", "#refusals", "Nothing was refused")
	refuse(t, bpffs, 40)
	b.Shows("what was refused, and why", "#refusals", "no_endpoint", "no endpoint of the Service can be used", "refused", "40",
		"shop/empty", "cluster: no endpoint can be used", "80/TCP IPv4", "40")
	stop := traffic(t, bpffs)
	b.Shows("the Service with connections comes first", firstRow, "shop/web")
	b.Shows("the chart", "#connections figcaption", "now ", "at most ")
	b.Click(`[data-key="kube-system/busy"]`)
	b.Shows("its backends", "#chosen", "Service kube-system/busy", "lc", "10.0.1.7:8080", "this node", "77.8 %, intended 50.0 %")
	b.Shows("where connections go", "#traffic", "this node 69.2 %, 9", "other nodes 30.8 %, 4", "10.0.1.7:8080", "kube-system/busy", "7")
	b.Shows("how full maps are", "#maps", "bl_flow", "of 1,024")
	stop()
	b.Until("traffic has ended", "latest.sum.connectionsPerSecond === 0")
	dir, away := datapath.Dir(bpffs), filepath.Join(bpffs, "away")
	check(t, os.Rename(dir, away))
	b.Shows("an error", "#problem", "Not read: no datapath")
	check(t, os.Rename(away, dir))
	b.Until("the error is gone", "document.querySelector('#problem').hidden")
	b.NoProblems("503")
}

// TestWebPageControls: each control works, by mouse and by keyboard.
func TestWebPageControls(t *testing.T) {
	b := browser.New(t)
	url := startWeb(t, newDatapath(t))
	b.Window(1280, 900, "light")
	b.Open(url + "#sort=flows")
	b.Shows("sorted by flows", firstRow, "shop/web")
	b.Eval(`document.querySelector('#sort').focus()`)
	b.Press("n", "n", 'N') // name
	b.Shows("sorted by name", firstRow, "default/kubernetes")
	b.Eval(`document.querySelector('#filter').focus()`)
	b.TypeText("shop/e")
	b.Shows("only those of the filter", "#shown", "1 to 1 of 1")
	b.Press("Tab", "", 9)
	b.Press("Tab", "", 9)
	b.Press("Enter", "\r", 13)
	b.Shows("chosen by keyboard", "#chosen", "Service shop/empty", "cluster: no endpoint can be used")
	b.Open("about:blank")
	b.Open(url + "#service=kube-system%2Fdns&filter=dns")
	b.Shows("the address says what is seen", "#chosen", "kube-system/dns", "53/UDP")
	b.Shows("the filter, too", "#shown", "1 to 1 of 1")

	b.Click("#pause")
	b.Shows("paused", `#pause[aria-pressed="true"]`, "Pause")
	b.Click("#close")
	b.Shows("none is chosen while paused", "#chosen", "Choose a Service")
	read := b.Eval("latest.time")
	b.Until("others get readings of ten intervals later",
		"fetch('top').then((r) => r.json()).then((a) => Date.parse(a.time) > Date.parse("+strconv.Quote(read)+") + 2000)")
	if now := b.Eval("latest.time"); now != read {
		t.Errorf("paused at %s, it shows %s", read, now)
	}
	b.Click("#pause")
	b.Until("goes on", "latest.time !== "+strconv.Quote(read))
	b.NoProblems()
}

// TestWebPageFits: the page fits a desktop and a phone, in the light and in the dark, with text that is
// seen on what is behind it.
func TestWebPageFits(t *testing.T) {
	b := browser.New(t)
	bpffs := newDatapath(t)
	url := startWeb(t, bpffs)
	b.Open(url)
	b.Shows("a rate", "#reading", "read at", "rates over")
	refuse(t, bpffs, 40)
	b.Shows("what was refused", "#refusals", "shop/empty")
	traffic(t, bpffs)
	for _, c := range []struct {
		name, scheme  string
		width, height int
	}{
		{"desktop-light", "light", 1280, 900},
		{"desktop-dark", "dark", 1280, 900},
		{"phone-light", "light", 360, 740},
		{"phone-dark", "dark", 360, 740},
	} {
		b.Window(c.width, c.height, c.scheme)
		b.Open("about:blank")
		b.Open(url + "#service=shop/web")
		b.Until("several readings are seen", "latest && latest.history.length > 20 && latest.sum.connectionsPerSecond > 0")
		b.Screenshot(c.name)
		b.Fits(c.name)
		b.Contrast(c.name)
	}
	b.NoProblems()
}

// TestWebPageLarge: with 10,000 Services the page draws the first of them alone, pages and filters, and
// a hostile name is text.
func TestWebPageLarge(t *testing.T) {
	b := browser.New(t)
	bpffs, _ := pinned(t, largeCluster(10_000))
	url := startWeb(t, bpffs)
	b.Window(360, 740, "dark")
	b.Open(url)
	b.Shows("the first page", "#shown", "1 to 25 of 10,000")
	b.Click("#next")
	b.Shows("the second page", "#shown", "26 to 50 of 10,000")
	b.Until("its rows", "document.querySelectorAll('#services tbody tr').length === 25")
	b.Eval(`document.querySelector('#filter').focus()`)
	b.TypeText("onerror")
	b.Shows("the hostile name as text", "#services tbody", hostile)
	b.Click("#services tbody button")
	b.Shows("its backends", "#chosen", hostile, "1000/TCP", "and 80 backends more", "and 92 ports more")
	b.Fits("a large Service on a phone")
	b.Until("no markup came of it", "!document.querySelector('img') && !('hacked' in window)")
	if n, err := strconv.Atoi(b.Eval("document.querySelectorAll('*').length")); err != nil || n > 4_000 {
		t.Errorf("the page has %d elements, %v", n, err)
	}
	b.Screenshot("phone-large")
	b.NoProblems()
}
