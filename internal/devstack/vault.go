package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Vault is a real Vault or OpenBao on a port of 127.0.0.1, initialised with one key share and unsealed. The share and the
// root token lie in a file of mode 0600 beside the data. This only protects a developer's machine from other users.
type Vault struct {
	dir      string
	audited  bool
	tags     string
	progress func(string)

	bin     string
	openBao bool
	port    int
	keys    vaultKeys

	mu     sync.Mutex
	proc   *process
	closed bool
}

type vaultKeys struct {
	Share     string `json:"unseal_key"`
	RootToken string `json:"root_token"`
}

// Addr returns the base URL of the API. It stays the same in later starts unless another program has taken the port.
func (v *Vault) Addr() string { return "http://" + loopback(v.port) }

// RootToken returns a token that may do everything and never expires.
func (v *Vault) RootToken() string { return v.keys.RootToken }

// AuditFile returns the file that gets a line for each request and each response, if [Config] enables the audit.
func (v *Vault) AuditFile() string { return v.path("audit.log") }

// Seal makes Vault forget its key. It then answers 503 to every request until Unseal.
func (v *Vault) Seal(ctx context.Context) error {
	run := v.current()
	run.token = v.keys.RootToken
	return run.call(ctx, "PUT", "sys/seal", nil, nil)
}

// Unseal gives Vault its key. If Vault is unsealed, it does nothing.
func (v *Vault) Unseal(ctx context.Context) error { return v.unseal(ctx, v.current()) }

func (v *Vault) unseal(ctx context.Context, run vaultRun) error {
	var status struct{ Sealed bool }
	if err := run.call(ctx, "PUT", "sys/unseal", map[string]string{"key": v.keys.Share}, &status); err != nil {
		return fmt.Errorf("unsealing Vault: %w", err)
	}
	if status.Sealed {
		return errors.New("unsealing Vault: it did not accept its key")
	}
	return run.awaitActive(ctx)
}

func (v *Vault) current() vaultRun {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.run()
}

// run requires that the caller holds the mutex.
func (v *Vault) run() vaultRun { return vaultRun{proc: v.proc, port: v.port} }

// Start runs Vault again after Stop, at the same address and with the same data, and unseals it. If Vault is running,
// Start does nothing. After the stack is closed, it returns ErrClosed.
func (v *Vault) Start(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return ErrClosed
	}
	if v.proc.serves(ctx, v.run().answers) {
		return nil
	}
	if err := v.launch(ctx); err != nil {
		return fmt.Errorf("starting Vault: %w", err)
	}
	return nil
}

// Stop ends the process. Stored data is kept.
func (v *Vault) Stop() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.proc.stop(5*time.Second, syscall.SIGTERM)
	return nil
}

// Kill ends the process as a crash does. Writes that are not stored yet are lost. Start runs it again.
func (v *Vault) Kill() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.proc.stop(0) // no signal before SIGKILL
	return nil
}

func (v *Vault) shut() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	return v.Stop()
}

// open finds or builds the binary, chooses a port and starts the server.
func (v *Vault) open(ctx context.Context) error {
	var err error
	if v.bin, err = vaultBinary(ctx, v.tags, v.progress); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	if v.openBao, err = isOpenBao(ctx, v.bin); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	if err = v.makeStorage(); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	return onFreePort(filepath.Join(v.dir, "vault.port"), func(port int) error {
		v.port = port
		return v.Start(ctx)
	})
}

// These are the storage folders of Vault and of OpenBao. Neither can read the other's.
const fileStorage, raftStorage = "data", "raft"

// makeStorage creates the server's storage folder. It returns an error if the other server has stored data here.
func (v *Vault) makeStorage() error {
	own, other, maker := fileStorage, raftStorage, "OpenBao"
	if v.openBao {
		own, other, maker = raftStorage, fileStorage, "Vault"
	}
	if stored, _ := os.ReadDir(v.path(other)); len(stored) > 0 { // an error means no folder, so no data
		return fmt.Errorf("%s holds data in the format of %s, and %s is another server: set BREVET_VAULT_BIN to one of %s, or remove %s to start over",
			v.path(other), maker, v.bin, maker, v.dir)
	}
	return os.MkdirAll(v.path(own), 0o700)
}

func (v *Vault) path(name string) string { return filepath.Join(v.dir, "vault", name) }

func (v *Vault) launch(ctx context.Context) error {
	if err := v.clearLeftovers(ctx); err != nil {
		return err
	}
	config := v.path("config.hcl")
	if err := writePrivate(config, []byte(v.config())); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	proc, err := command{
		path: v.bin, args: []string{"server", "-config=" + config}, log: filepath.Join(v.dir, "vault.log"),
		onParentDeath: syscall.SIGKILL, // file storage replaces files as a whole
	}.start()
	if err != nil {
		return err
	}
	if err := proc.await(ctx, vaultRun{proc: proc, port: v.port}.answers); err != nil {
		return err
	}
	v.proc = proc
	if err := writePrivate(v.path("pid"), []byte(strconv.Itoa(proc.cmd.Process.Pid))); err != nil {
		return fmt.Errorf("writing the process id: %w", err)
	}
	if err := v.initialise(ctx); err != nil {
		return fmt.Errorf("%w (see %s)", err, proc.log)
	}
	if err := v.unseal(ctx, v.run()); err != nil {
		return err
	}
	if v.audited && !v.openBao {
		return v.enableAudit(ctx)
	}
	return nil
}

const auditDevice = "devstack"

// enableAudit is for Vault, which cannot declare an audit device in its configuration.
func (v *Vault) enableAudit(ctx context.Context) error {
	run := v.run()
	run.token = v.keys.RootToken
	var devices map[string]any
	if err := run.call(ctx, "GET", "sys/audit", nil, &devices); err != nil {
		return fmt.Errorf("listing the audit devices: %w", err)
	}
	if _, there := devices[auditDevice+"/"]; there {
		return nil
	}
	device := map[string]any{"type": "file", "options": map[string]string{"file_path": v.AuditFile()}}
	if err := run.call(ctx, "PUT", "sys/audit/"+auditDevice, device, nil); err != nil {
		return fmt.Errorf("enabling the audit log: %w", err)
	}
	return nil
}

func (v *Vault) config() string {
	own, cluster := v.vaultConfig(), ""
	if v.openBao {
		own, cluster = v.openBaoConfig(), "\n  cluster_address = \"127.0.0.1:0\""
	}
	return fmt.Sprintf(`# Written by Brevet's development stack at each start.
listener "tcp" {
  address     = %q
  tls_disable = true%s
}
api_addr  = %q
ui        = false
log_level = "info"
%s`, loopback(v.port), cluster, v.Addr(), own)
}

func (v *Vault) vaultConfig() string {
	return fmt.Sprintf(`disable_mlock = true
storage "file" {
  path = %q
}
`, v.path(fileStorage))
}

// openBaoConfig uses the only storage that OpenBao supports without another server. Even a single node waits for its own
// election: the multiplier keeps that to a second or two.
func (v *Vault) openBaoConfig() string {
	config := fmt.Sprintf(`cluster_addr = "https://127.0.0.1:0"
storage "raft" {
  path                   = %q
  node_id                = "devstack"
  performance_multiplier = 1
}
`, v.path(raftStorage))
	if v.audited {
		config += fmt.Sprintf(`audit "file" %q {
  options {
    file_path = %q
  }
}
`, auditDevice, v.AuditFile())
	}
	return config
}

func (v *Vault) clearLeftovers(ctx context.Context) error {
	text, err := os.ReadFile(v.path("pid"))
	if err != nil {
		return nil //nolint:nilerr // no file, no leftover
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return nil //nolint:nilerr // not a number that we wrote
	}
	return endOrphan(ctx, pid, v.path(""), syscall.SIGTERM)
}

// initialise creates the keys on the first start and reads them on later ones. A marker file exists while Vault may have
// keys that are not stored yet. If Vault is interrupted during that time, it holds no data, and the next start discards it.
func (v *Vault) initialise(ctx context.Context) error {
	if v.keys.RootToken != "" { // a restart; others may be reading the token now
		return nil
	}
	keys, note := v.path("keys.json"), v.path("initialising")
	if text, err := os.ReadFile(keys); err == nil {
		return json.Unmarshal(text, &v.keys)
	}
	var status struct{ Initialized bool }
	if err := v.run().call(ctx, "GET", "sys/init", nil, &status); err != nil {
		return fmt.Errorf("asking whether it is initialised: %w", err)
	}
	if status.Initialized {
		return v.orphaned(ctx, note)
	}
	if err := writePrivate(note, nil); err != nil {
		return fmt.Errorf("initialising: %w", err)
	}
	var made struct {
		Keys      []string `json:"keys_base64"`
		RootToken string   `json:"root_token"`
	}
	if err := v.run().call(ctx, "PUT", "sys/init", map[string]int{"secret_shares": 1, "secret_threshold": 1}, &made); err != nil {
		return fmt.Errorf("initialising: %w", err)
	}
	if len(made.Keys) != 1 || made.RootToken == "" {
		return errors.New("initialising: Vault answered without a key or token")
	}
	v.keys = vaultKeys{Share: made.Keys[0], RootToken: made.RootToken}
	text, err := json.Marshal(v.keys)
	if err == nil {
		err = writePrivate(keys, text)
	}
	return errors.Join(err, os.Remove(note))
}

// orphaned handles an initialised Vault without a keys file. If the marker shows that the keys were never stored, it
// starts over. Otherwise it returns an error.
func (v *Vault) orphaned(ctx context.Context, note string) error {
	if _, err := os.Stat(note); err != nil {
		return fmt.Errorf("%s is missing, and without it the stored data cannot be opened: remove %s to start over",
			v.path("keys.json"), v.path(""))
	}
	v.proc.stop(time.Second, syscall.SIGTERM)
	if err := errors.Join(os.RemoveAll(v.path(fileStorage)), os.RemoveAll(v.path(raftStorage)), v.makeStorage(), os.Remove(note)); err != nil {
		return fmt.Errorf("starting over: %w", err)
	}
	return v.launch(ctx)
}
