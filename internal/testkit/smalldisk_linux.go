package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
)

// smallDisk is the size of a SmallDisk. An empty cluster with a database takes half of it.
const smallDisk = 128 << 20

// SmallDisk is a PostgreSQL of one test, whose data folder with its write-ahead log is on a file system that can be filled.
// It has nothing else on it.
type SmallDisk struct {
	// Postgres is the server. Nothing restarts it but the test, and its log is on another file system.
	Postgres *devstack.Postgres
	// DB is a migrated database on the server.
	DB *DB

	folder, data string
}

// NewSmallDisk starts the server, which ends with the test. It mounts a file system, and fails the test if this process may not.
func NewSmallDisk(t testing.TB) *SmallDisk {
	t.Helper()
	d := &SmallDisk{folder: t.TempDir()}
	d.data = filepath.Join(d.folder, "postgres")
	stack, err := devstack.Start(t.Context(), devstack.Config{Dir: d.folder, WithoutVault: true})
	if err != nil {
		t.Fatalf("starting PostgreSQL: %v", err)
	}
	d.Postgres = stack.Postgres
	t.Cleanup(func() {
		if err := stack.Close(); err != nil {
			t.Errorf("ending PostgreSQL: %v", err)
		}
	})
	d.move(t)
	d.DB = newDBOn(t, d.Postgres)
	return d
}

// move moves the data of the server to a small file system.
func (d *SmallDisk) move(t testing.TB) {
	t.Helper()
	info, err := os.Stat(d.data)
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("the owner of the data folder is not known")
	}
	if err := errors.Join(d.Postgres.Stop(), os.Rename(d.data, d.data+".large"), os.Mkdir(d.data, 0o700)); err != nil {
		t.Fatalf("moving the data: %v", err)
	}
	options := fmt.Sprintf("size=%d,mode=0700,uid=%d,gid=%d", smallDisk, owner.Uid, owner.Gid)
	if err := syscall.Mount("tmpfs", d.data, "tmpfs", 0, options); err != nil {
		t.Fatalf("mounting a small file system, which only root may do: run this test as root: %v", err)
	}
	t.Cleanup(func() { // after the removal of everything that uses it
		if err := errors.Join(d.Postgres.Stop(), syscall.Unmount(d.data, syscall.MNT_DETACH)); err != nil {
			t.Errorf("unmounting the small file system: %v", err)
		}
	})
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", d.data+".large/.", d.data).CombinedOutput(); err != nil {
		t.Fatalf("moving the data: %v\n%s", err, out)
	}
	if err := errors.Join(os.RemoveAll(d.data+".large"), d.Postgres.Start(t.Context())); err != nil {
		t.Fatalf("starting PostgreSQL on the small file system: %v", err)
	}
}

func (d *SmallDisk) ballast() string { return filepath.Join(d.data, "ballast") }

// Fill adds ballast until not one byte is left. Whoever runs out of space first is the server's choice: Postgres may still have
// room in pages and segments that it has allocated.
func (d *SmallDisk) Fill(t testing.TB) {
	t.Helper()
	file, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Errorf("filling the disk: %v", err)
		return
	}
	defer func() { _ = file.Close() }()
	for size := 1 << 20; size >= 1<<9; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Errorf("filling the disk: %v", err)
			return
		}
	}
}

// Free removes the ballast.
func (d *SmallDisk) Free(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		t.Errorf("freeing the disk: %v", err)
	}
}

// Left returns how many bytes are free.
func (d *SmallDisk) Left(t testing.TB) int64 {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.data, &fs); err != nil {
		t.Fatal(err)
	}
	return int64(fs.Bavail) * fs.Bsize
}

// Log returns what the server has logged.
func (d *SmallDisk) Log(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.folder, "postgres.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
