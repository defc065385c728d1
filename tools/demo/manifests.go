package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// terminating are the conditions that a pod's endpoint has from its deletion until
// its containers have ended.
const terminating = "    conditions: {ready: false, serving: true, terminating: true}\n"

// copyManifests copies the files of a folder.
func copyManifests(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no manifests in %s: run the demo from the top of the checkout", from)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// endpointLine is how the manifests name an endpoint.
func endpointLine(addr string) string { return fmt.Sprintf("  - addresses: [%s]\n", addr) }

// replaceInManifests replaces a text in every manifest of a folder. Each file is
// renamed into place, so that the agent never reads half of one.
func replaceInManifests(dir, old, new string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	changed := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.Contains(string(content), old) {
			continue
		}
		changed++
		// The agent passes over files that are not called .yaml, .yml or .json.
		fresh := file + ".new"
		if err := os.WriteFile(fresh, []byte(strings.ReplaceAll(string(content), old, new)), 0o644); err != nil {
			return err
		}
		if err := os.Rename(fresh, file); err != nil {
			return err
		}
	}
	if changed == 0 {
		return fmt.Errorf("no manifest in %s has %q", dir, old)
	}
	return nil
}
