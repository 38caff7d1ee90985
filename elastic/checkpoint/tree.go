package checkpoint

import (
	"context"
	"fmt"
	"path"
)

// maxEntries bounds a walk over a step's directory, which a user's program filled.
const maxEntries = 4 * MaxFiles

// SyncTree makes everything at and below dir durable, files before the folders that
// name them, then every folder from dir's parent up to and including store, since
// the folder of a new run is itself an entry that a power loss can take back. Links
// and devices are skipped: they are never part of a checkpoint.
func SyncTree(ctx context.Context, fsys FS, store, dir string) error {
	if err := realDirs(fsys, store, dir); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	left := maxEntries
	if err := syncBelow(ctx, fsys, dir, MaxPathParts+1, &left); err != nil {
		return err
	}
	for at := dir; at != store; {
		at = path.Dir(at)
		if err := fsys.SyncDir(at); err != nil {
			return fmt.Errorf("sync folder %s: %w", at, err)
		}
	}
	return nil
}

func syncBelow(ctx context.Context, fsys FS, dir string, depth int, left *int) error {
	if depth == 0 {
		return fmt.Errorf("sync %s: more than %d folders deep", dir, MaxPathParts)
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if *left -= len(entries); *left < 0 {
		return fmt.Errorf("sync %s: more than %d entries in one step", dir, maxEntries)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			err = syncBelow(ctx, fsys, name, depth-1, left)
		case e.Type().IsRegular():
			err = syncFile(fsys, name)
		}
		if err != nil {
			return err
		}
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

func syncFile(fsys FS, name string) error {
	f, _, err := OpenRegular(fsys, name)
	if err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	return nil
}
