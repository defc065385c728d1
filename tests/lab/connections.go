package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// LogConnections logs what the kernel knows of every TCP connection in the namespaces that this
// process has made, those of tests beside this one among them: for a test whose connection
// stands still.
func LogConnections(t testing.TB) {
	t.Helper()
	var file unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &file); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{file.Ino: true} // not those of the machine
	threads, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, namespace := range threads {
		if unix.Stat(namespace, &file) != nil || seen[file.Ino] {
			continue
		}
		seen[file.Ino] = true
		// The path names a thread of this process, not of the command.
		own := strings.Replace(namespace, "self", strconv.Itoa(os.Getpid()), 1)
		out, err := exec.Command("nsenter", "--net="+own, "ss", "-tinemOH").CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Logf("connections of network namespace %d: %v\n%s", file.Ino, err, out)
		}
	}
}
