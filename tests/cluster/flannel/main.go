// Command flannel stands in for flannel's CNI plugin, whose module the Go proxy does
// not have. It makes the configuration of the plugin bridge from its own and from the
// subnet file that flanneld writes, and becomes that plugin.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func main() {
	if err := delegate(); err != nil {
		// The form of an error in the CNI specification; 999 is one of a plugin's own codes.
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "1.0.0", "code": 999, "msg": err.Error()})
		os.Exit(1)
	}
}

// delegate becomes the plugin bridge. It returns only when that fails.
func delegate() error {
	command := os.Getenv("CNI_COMMAND")
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if command != "VERSION" {
		file, err := os.ReadFile(subnetFile)
		if errors.Is(err, os.ErrNotExist) && command == "DEL" {
			return nil // the node has begun anew, and its pods are gone
		}
		if err != nil {
			return fmt.Errorf("flanneld has not written its subnet: %w", err)
		}
		if input, err = bridgeConfig(input, string(file)); err != nil {
			return err
		}
	}
	bridge, err := find("bridge")
	if err != nil {
		return err
	}
	if err := replaceInput(input); err != nil {
		return err
	}
	return unix.Exec(bridge, []string{bridge}, os.Environ())
}

// find returns the path of a plugin in the folders that the runtime names.
func find(name string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("plugin %s is in none of CNI_PATH=%s", name, os.Getenv("CNI_PATH"))
}

// replaceInput has standard input give content, also to the program that this one
// becomes.
func replaceInput(content []byte) error {
	fd, err := unix.MemfdCreate("config", 0)
	if err != nil {
		return fmt.Errorf("make a file in memory: %w", err)
	}
	if _, err := unix.Write(fd, content); err != nil {
		return err
	}
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0)
}
