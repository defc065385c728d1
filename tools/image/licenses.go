package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
)

// licenseFile matches the names under which modules keep what has to go along with
// their code.
var licenseFile = regexp.MustCompile(`(?i)^(license|licence|copying|notice|patents)([._-].*)?$`)

// writeLicenses copies the license files of each module to a folder of its name.
// A module without any is an error: it must not be passed on.
func writeLicenses(out string, modules []debug.Module) error {
	for _, m := range modules {
		source, err := sourceOf(m)
		if err != nil {
			return err
		}
		if err := copyLicenses(source, filepath.Join(out, filepath.FromSlash(m.Path))); err != nil {
			return fmt.Errorf("licenses of %s: %w", m.Path, err)
		}
	}
	return nil
}

// sourceOf returns the folder with a module's files, those of Go for stdlib.
func sourceOf(m debug.Module) (string, error) {
	if m.Path == "stdlib" {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		return strings.TrimSpace(string(out)), err
	}
	out, err := exec.Command("go", "mod", "download", "-json", m.Path+"@"+m.Version).Output()
	if err != nil {
		return "", fmt.Errorf("find the files of %s@%s: %w", m.Path, m.Version, err)
	}
	var found struct{ Dir string }
	err = json.Unmarshal(out, &found)
	return found.Dir, err
}

func copyLicenses(source, out string) error {
	files, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	copied := 0
	for _, f := range files {
		if f.IsDir() || !licenseFile.MatchString(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(source, f.Name()))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, f.Name()), text, 0o644); err != nil {
			return err
		}
		copied++
	}
	if copied == 0 {
		return fmt.Errorf("none found in %s", source)
	}
	return nil
}
