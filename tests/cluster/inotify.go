package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const inotifyFile = "/proc/sys/fs/inotify/max_user_instances"

// inotifyInstances is how many a user needs for some kubelets and containerds. By this
// number clusters that run beside each other know that one of them has set it.
const inotifyInstances = 2039

// inotifyDefault is the kernel's own limit.
const inotifyDefault = 128

// raiseInotify raises the machine's limit if it is too low, and returns what it was;
// zero when it is left as it is.
func raiseInotify() (was int, err error) {
	have, err := readInotify()
	if err != nil || have >= inotifyInstances {
		return 0, err
	}
	return have, os.WriteFile(inotifyFile, fmt.Append(nil, inotifyInstances), 0)
}

// restoreInotify sets the limit back once the last cluster has gone: to what it was, or
// to the kernel's own when another cluster has raised it.
func restoreInotify(was int, gone groups) error {
	others, err := filepath.Glob(filepath.Join(filepath.Dir(gone.unified()), placePrefix+"*"))
	if err != nil || len(others) > 0 {
		return err
	}
	if have, err := readInotify(); err != nil || have != inotifyInstances {
		return err
	}
	if was == 0 {
		was = inotifyDefault
	}
	return os.WriteFile(inotifyFile, fmt.Append(nil, was), 0)
}

func readInotify() (int, error) {
	b, err := os.ReadFile(inotifyFile)
	if err != nil {
		return 0, err
	}
	var have int
	_, err = fmt.Sscan(string(b), &have)
	return have, err
}
