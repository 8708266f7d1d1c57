package clouds

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	kubeIssuer = "https://kubernetes.default.svc.cluster.local"
	// shortestToken is the least expirationSeconds of a TokenRequest.
	shortestToken = 10 * time.Minute
	// warnedSeconds is the life that the API server extends to a year, for clients that never read their token file again
	// (--service-account-extend-token-expiration, which is on by default).
	warnedSeconds = 3607
	extendedLife  = 365 * 24 * time.Hour
)

// Kubernetes is the part of an API server that the engine kubernetes of Vault calls: service accounts with TokenRequest, roles and role
// bindings, namespaces, TokenReview, and pods to list. It follows the API reference of Kubernetes 1.34 and the documentation of RBAC. It
// verifies every token, checks every call against RBAC, and collects objects whose owner is gone.
type Kubernetes struct {
	URL string
	// CA is the server's certificate, as PEM.
	CA string

	key *rsa.PrivateKey

	mu      sync.Mutex
	objects map[string]kubeObject // by kind/namespace/name
	uid     int
	// longest caps the life of tokens (--service-account-max-token-expiration); zero for no cap.
	longest time.Duration
}

type kubeObject struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   kubeMeta       `json:"metadata"`
	Rules      []kubeRule     `json:"rules,omitempty"`
	Subjects   []kubeSubject  `json:"subjects,omitempty"`
	RoleRef    kubeRoleRef    `json:"roleRef,omitzero"`
	Spec       kubeTokenSpec  `json:"spec,omitzero"`
	Status     map[string]any `json:"status,omitempty"`
}

type kubeMeta struct {
	Name      string      `json:"name,omitempty"`
	Namespace string      `json:"namespace,omitempty"`
	UID       string      `json:"uid,omitempty"`
	Created   time.Time   `json:"creationTimestamp,omitzero"`
	Owners    []kubeOwner `json:"ownerReferences,omitempty"`
}

type kubeOwner struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	UID  string `json:"uid"`
}

type kubeRule struct {
	Verbs         []string `json:"verbs"`
	APIGroups     []string `json:"apiGroups"`
	Resources     []string `json:"resources"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

type kubeSubject struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

type kubeRoleRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

type kubeTokenSpec struct {
	Token             string   `json:"token,omitempty"` // of a TokenReview
	Audiences         []string `json:"audiences,omitempty"`
	ExpirationSeconds int64    `json:"expirationSeconds,omitempty"`
	bound             bool
}

// kubeError is a Status that is not a success.
type kubeError struct {
	code            int
	reason, message string
}

func (e *kubeError) Error() string { return e.message }

// NewKubernetes starts an API server with the namespace shop and its pod web-0, the service account vault in kube-system with what
// the documentation of Vault's engine says it needs, the Role pod-reader, and the service account deployer, which is bound to it.
func NewKubernetes(t testing.TB) *Kubernetes {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubernetes{key: key, objects: map[string]kubeObject{}}
	const rbac = "rbac.authorization.k8s.io"
	change := []string{"create", "update", "delete"}
	for _, o := range []kubeObject{
		{Kind: "Namespace", Metadata: kubeMeta{Name: "shop"}},
		{Kind: "Namespace", Metadata: kubeMeta{Name: "kube-system"}},
		{Kind: "Pod", Metadata: kubeMeta{Name: "web-0", Namespace: "shop"}},
		{Kind: "ServiceAccount", Metadata: kubeMeta{Name: "vault", Namespace: "kube-system"}},
		{Kind: "ServiceAccount", Metadata: kubeMeta{Name: "deployer", Namespace: "shop"}},
		{Kind: "ClusterRole", Metadata: kubeMeta{Name: "k8s-full-secrets-abilities"}, Rules: []kubeRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"namespaces"}},
			{Verbs: change, APIGroups: []string{""}, Resources: []string{"serviceaccounts", "serviceaccounts/token"}},
			{Verbs: change, APIGroups: []string{rbac}, Resources: []string{"rolebindings", "clusterrolebindings"}},
			{Verbs: append([]string{"bind", "escalate"}, change...), APIGroups: []string{rbac}, Resources: []string{"roles", "clusterroles"}},
		}},
		{
			Kind: "ClusterRoleBinding", Metadata: kubeMeta{Name: "vault"}, RoleRef: kubeRoleRef{"ClusterRole", "k8s-full-secrets-abilities"},
			Subjects: []kubeSubject{{"ServiceAccount", "vault", "kube-system"}},
		},
		{Kind: "Role", Metadata: kubeMeta{Name: "pod-reader", Namespace: "shop"}, Rules: []kubeRule{
			{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}},
		}},
		{
			Kind: "RoleBinding", Metadata: kubeMeta{Name: "deployer", Namespace: "shop"}, RoleRef: kubeRoleRef{"Role", "pod-reader"},
			Subjects: []kubeSubject{{"ServiceAccount", "deployer", "shop"}},
		},
	} {
		k.put(o)
	}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	k.URL = server.URL
	k.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return k
}

// VaultToken returns a token of the service account of Vault, for an hour.
func (k *Kubernetes) VaultToken() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sign(k.objects["ServiceAccount/kube-system/vault"], []string{kubeIssuer}, time.Hour)
}

// Accounts returns the names of the service accounts in a namespace, sorted.
func (k *Kubernetes) Accounts(namespace string) []string { return k.names("ServiceAccount", namespace) }

// Bindings returns the names of the role bindings in a namespace, sorted.
func (k *Kubernetes) Bindings(namespace string) []string { return k.names("RoleBinding", namespace) }

func (k *Kubernetes) names(kind, namespace string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, o := range k.objects {
		if o.Kind == kind && o.Metadata.Namespace == namespace {
			out = append(out, o.Metadata.Name)
		}
	}
	slices.Sort(out)
	return out
}

// CapTokens makes every token live that long at most.
func (k *Kubernetes) CapTokens(at time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.longest = at
}

func (o kubeObject) key() string { return o.Kind + "/" + o.Metadata.Namespace + "/" + o.Metadata.Name }

// put requires the lock, or that nobody else knows k.
func (k *Kubernetes) put(o kubeObject) kubeObject {
	k.uid++
	o.Metadata.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", k.uid)
	o.Metadata.Created = time.Now().UTC().Truncate(time.Second)
	o.APIVersion = "v1"
	if strings.Contains(o.Kind, "Role") {
		o.APIVersion = "rbac.authorization.k8s.io/v1"
	}
	k.objects[o.key()] = o
	return o
}

// kubePath is the path of a namespaced or cluster-wide resource: group, namespace, resource, name and subresource.
var kubePath = regexp.MustCompile(`^/(?:api/v1|apis/([a-z0-9.]+)/v1)(?:/namespaces/([a-z0-9-]+))?/([a-z]+)(?:/([a-z0-9.:-]+)(?:/([a-z]+))?)?$`)

var kubeKinds = map[string]string{
	"namespaces": "Namespace", "pods": "Pod", "serviceaccounts": "ServiceAccount", "tokenreviews": "TokenReview",
	"roles": "Role", "clusterroles": "ClusterRole", "rolebindings": "RoleBinding", "clusterrolebindings": "ClusterRoleBinding",
}

// kubeCall is one call, with the service account that makes it.
type kubeCall struct {
	verb, group, namespace, resource, name, sub string
	caller                                      kubeObject
	body                                        kubeObject
}

// ServeHTTP implements the API. A call is authenticated, then authorized, then validated.
func (k *Kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	status, answer, err := k.answer(r)
	if refusal, ok := errors.AsType[*kubeError](err); ok {
		status = refusal.code
		answer = map[string]any{
			"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
			"message": refusal.message, "reason": refusal.reason, "code": refusal.code,
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (k *Kubernetes) answer(r *http.Request) (int, any, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	caller, err := k.authenticate(token, kubeIssuer)
	if err != nil {
		return 0, nil, &kubeError{http.StatusUnauthorized, "Unauthorized", "Unauthorized"}
	}
	if list := discovery(r.URL.Path); list != nil && r.Method == http.MethodGet {
		return http.StatusOK, list, nil
	}
	c, err := k.read(r, caller)
	if err != nil {
		return 0, nil, err
	}
	if !k.may(caller, c.verb, c.group, c.full(), c.namespace, c.name) {
		return 0, nil, c.forbidden()
	}
	switch {
	case c.sub == "token" && c.verb == "create":
		return k.createToken(c)
	case c.resource == "tokenreviews" && c.verb == "create":
		return http.StatusCreated, k.review(c), nil
	case c.sub != "":
		return 0, nil, &kubeError{http.StatusNotFound, "NotFound", "the server could not find the requested resource"}
	case c.verb == "create":
		return k.create(c)
	case c.verb == "list":
		return http.StatusOK, k.list(c), nil
	}
	object, there := k.objects[kubeObject{Kind: kubeKinds[c.resource], Metadata: kubeMeta{Name: c.name, Namespace: c.namespace}}.key()]
	switch {
	case !there:
		return 0, nil, &kubeError{http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", c.resource, c.name)}
	case c.verb == "delete":
		delete(k.objects, object.key())
		k.collect()
		return http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success"}, nil
	default:
		return http.StatusOK, object, nil
	}
}

// read takes a call apart.
func (k *Kubernetes) read(r *http.Request, caller kubeObject) (kubeCall, error) {
	m := kubePath.FindStringSubmatch(r.URL.Path)
	if m == nil || kubeKinds[m[3]] == "" {
		return kubeCall{}, &kubeError{http.StatusNotFound, "NotFound", "the server could not find the requested resource"}
	}
	c := kubeCall{group: m[1], namespace: m[2], resource: m[3], name: m[4], sub: m[5], caller: caller}
	switch {
	case r.Method == http.MethodPost:
		c.verb = "create"
	case r.Method == http.MethodDelete && c.name != "":
		c.verb = "delete"
	case r.Method == http.MethodGet && c.name == "":
		c.verb = "list"
	case r.Method == http.MethodGet:
		c.verb = "get"
	default:
		return kubeCall{}, &kubeError{http.StatusMethodNotAllowed, "MethodNotAllowed", "the server does not allow this method"}
	}
	if c.verb != "create" {
		return c, nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		switch r.Header.Get("Content-Type") {
		case "application/vnd.kubernetes.protobuf":
			c.body, err = readObject(text)
		case "application/json":
			err = json.Unmarshal(text, &c.body)
		default:
			return kubeCall{}, &kubeError{http.StatusUnsupportedMediaType, "UnsupportedMediaType", "want JSON or protobuf"}
		}
	}
	want := kubeKinds[c.resource]
	if c.sub == "token" {
		want = "TokenRequest"
	}
	if err != nil || c.body.Kind != want {
		return kubeCall{}, &kubeError{http.StatusBadRequest, "BadRequest", fmt.Sprintf("want a %s, got %q: %v", want, c.body.Kind, err)}
	}
	return c, nil
}

func (c kubeCall) full() string {
	if c.sub != "" {
		return c.resource + "/" + c.sub
	}
	return c.resource
}

func (c kubeCall) forbidden() error {
	return &kubeError{http.StatusForbidden, "Forbidden", fmt.Sprintf("%s %q is forbidden: User \"system:serviceaccount:%s:%s\" cannot %s resource %q in API group %q in the namespace %q",
		c.resource, c.name, c.caller.Metadata.Namespace, c.caller.Metadata.Name, c.verb, c.full(), c.group, c.namespace)}
}

// may reports whether RBAC allows a call.
func (k *Kubernetes) may(who kubeObject, verb, group, resource, namespace, name string) bool {
	has := func(list []string, one string) bool { return slices.Contains(list, one) || slices.Contains(list, "*") }
	for _, b := range k.objects {
		wide := b.Kind == "ClusterRoleBinding"
		if !wide && (b.Kind != "RoleBinding" || b.Metadata.Namespace != namespace) ||
			!slices.Contains(b.Subjects, kubeSubject{"ServiceAccount", who.Metadata.Name, who.Metadata.Namespace}) {
			continue
		}
		at := ""
		if b.RoleRef.Kind == "Role" {
			at = b.Metadata.Namespace
		}
		role := k.objects[b.RoleRef.Kind+"/"+at+"/"+b.RoleRef.Name]
		for _, rule := range role.Rules {
			if has(rule.Verbs, verb) && has(rule.APIGroups, group) && has(rule.Resources, resource) &&
				(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, name)) {
				return true
			}
		}
	}
	return false
}

// create stores an object. Nobody may grant what they do not have, without the verbs escalate and bind.
func (k *Kubernetes) create(c kubeCall) (int, any, error) {
	o := c.body
	o.Metadata.Namespace = c.namespace
	if o.Metadata.Name == "" || len(o.Metadata.Name) > 253 {
		return 0, nil, &kubeError{http.StatusUnprocessableEntity, "Invalid", "metadata.name: Required value"}
	}
	verb, resource := "", ""
	switch o.Kind {
	case "Role", "ClusterRole":
		verb, resource = "escalate", c.resource
	case "RoleBinding", "ClusterRoleBinding":
		verb, resource = "bind", strings.ToLower(o.RoleRef.Kind)+"s"
	}
	if verb != "" && !k.may(c.caller, verb, c.group, resource, c.namespace, o.RoleRef.Name) {
		c.verb = verb
		return 0, nil, c.forbidden()
	}
	if _, there := k.objects[o.key()]; there {
		return 0, nil, &kubeError{http.StatusConflict, "AlreadyExists", fmt.Sprintf("%s %q already exists", c.resource, o.Metadata.Name)}
	}
	if _, there := k.objects["Namespace//"+c.namespace]; c.namespace != "" && !there {
		return 0, nil, &kubeError{http.StatusNotFound, "NotFound", fmt.Sprintf("namespaces %q not found", c.namespace)}
	}
	return http.StatusCreated, k.put(o), nil
}

// collect deletes the objects that have owners of which none exists.
func (k *Kubernetes) collect() {
	for again := true; again; {
		again = false
		uids := map[string]bool{}
		for _, o := range k.objects {
			uids[o.Metadata.UID] = true
		}
		for key, o := range k.objects {
			if len(o.Metadata.Owners) > 0 && !slices.ContainsFunc(o.Metadata.Owners, func(own kubeOwner) bool { return uids[own.UID] }) {
				delete(k.objects, key)
				again = true
			}
		}
	}
}

func (k *Kubernetes) list(c kubeCall) any {
	items := []kubeObject{}
	for _, o := range k.objects {
		if o.Kind == kubeKinds[c.resource] && (c.namespace == "" || o.Metadata.Namespace == c.namespace) {
			items = append(items, o)
		}
	}
	return map[string]any{"kind": kubeKinds[c.resource] + "List", "apiVersion": "v1", "metadata": map[string]any{}, "items": items}
}

// createToken is TokenRequest.
func (k *Kubernetes) createToken(c kubeCall) (int, any, error) {
	account, there := k.objects["ServiceAccount/"+c.namespace+"/"+c.name]
	life := time.Duration(c.body.Spec.ExpirationSeconds) * time.Second
	if c.body.Spec.ExpirationSeconds == 0 {
		life = time.Hour
	}
	switch {
	case !there:
		return 0, nil, &kubeError{http.StatusNotFound, "NotFound", fmt.Sprintf("serviceaccounts %q not found", c.name)}
	case c.body.Spec.bound:
		return 0, nil, &kubeError{http.StatusBadRequest, "BadRequest", "bound objects are not implemented here"}
	case life < shortestToken:
		return 0, nil, &kubeError{http.StatusUnprocessableEntity, "Invalid", fmt.Sprintf("TokenRequest.authentication.k8s.io \"\" is invalid: "+
			"spec.expirationSeconds: Invalid value: %d: may not specify a duration less than 10 minutes", c.body.Spec.ExpirationSeconds)}
	}
	if k.longest > 0 {
		life = min(life, k.longest)
	}
	audiences := c.body.Spec.Audiences
	if len(audiences) == 0 {
		audiences = []string{kubeIssuer}
	}
	signed := life
	if c.body.Spec.ExpirationSeconds == warnedSeconds && slices.Equal(audiences, []string{kubeIssuer}) {
		signed = extendedLife
	}
	out := c.body
	out.APIVersion, out.Kind = "authentication.k8s.io/v1", "TokenRequest"
	out.Metadata = kubeMeta{Name: c.name, Namespace: c.namespace}
	out.Spec.Audiences = audiences
	out.Status = map[string]any{
		"token": k.sign(account, audiences, signed), "expirationTimestamp": time.Now().Add(life).UTC().Format(time.RFC3339),
	}
	return http.StatusCreated, out, nil
}

// review is TokenReview.
func (k *Kubernetes) review(c kubeCall) any {
	out := c.body
	out.Status = map[string]any{"authenticated": false}
	if account, err := k.authenticate(out.Spec.Token, kubeIssuer); err == nil {
		out.Status = map[string]any{"authenticated": true, "user": map[string]any{
			"username": "system:serviceaccount:" + account.Metadata.Namespace + ":" + account.Metadata.Name, "uid": account.Metadata.UID,
		}}
	}
	return out
}

var rawURL = base64.RawURLEncoding

type kubeClaims struct {
	Audience []string `json:"aud"`
	Expires  int64    `json:"exp"`
	IssuedAt int64    `json:"iat"`
	Issuer   string   `json:"iss"`
	Place    struct {
		Namespace string `json:"namespace"`
		Account   struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
	NotBefore int64  `json:"nbf"`
	Subject   string `json:"sub"`
}

func (k *Kubernetes) sign(account kubeObject, audiences []string, life time.Duration) string {
	now := time.Now()
	claims := kubeClaims{
		Audience: audiences, Expires: now.Add(life).Unix(), IssuedAt: now.Unix(), NotBefore: now.Unix(), Issuer: kubeIssuer,
		Subject: "system:serviceaccount:" + account.Metadata.Namespace + ":" + account.Metadata.Name,
	}
	claims.Place.Namespace = account.Metadata.Namespace
	claims.Place.Account.Name, claims.Place.Account.UID = account.Metadata.Name, account.Metadata.UID
	payload, _ := json.Marshal(claims)
	signed := rawURL.EncodeToString([]byte(`{"alg":"RS256","kid":"k1"}`)) + "." + rawURL.EncodeToString(payload)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, k.key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err)
	}
	return signed + "." + rawURL.EncodeToString(signature)
}

var errUnauthorized = errors.New("unauthorized")

// authenticate verifies a token. Its service account must still exist, with the same UID.
func (k *Kubernetes) authenticate(token, audience string) (kubeObject, error) {
	last := strings.LastIndexByte(token, '.')
	first := strings.IndexByte(token, '.')
	if first < 0 || last <= first {
		return kubeObject{}, errUnauthorized
	}
	signature, err1 := rawURL.DecodeString(token[last+1:])
	payload, err2 := rawURL.DecodeString(token[first+1 : last])
	sum := sha256.Sum256([]byte(token[:last]))
	var claims kubeClaims
	if errors.Join(err1, err2, rsa.VerifyPKCS1v15(&k.key.PublicKey, crypto.SHA256, sum[:], signature)) != nil || json.Unmarshal(payload, &claims) != nil {
		return kubeObject{}, errUnauthorized
	}
	account, there := k.objects["ServiceAccount/"+claims.Place.Namespace+"/"+claims.Place.Account.Name]
	now := time.Now().Unix()
	if !there || account.Metadata.UID != claims.Place.Account.UID || now >= claims.Expires || now < claims.NotBefore ||
		claims.Issuer != kubeIssuer || !slices.Contains(claims.Audience, audience) {
		return kubeObject{}, errUnauthorized
	}
	return account, nil
}

// discovery answers what kubectl asks before it lists pods.
func discovery(path string) any {
	switch path {
	case "/api":
		return map[string]any{"kind": "APIVersions", "versions": []string{"v1"}, "serverAddressByClientCIDRs": []any{}}
	case "/apis":
		return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{}}
	case "/api/v1":
		return map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{
			map[string]any{"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": []string{"get", "list"}, "shortNames": []string{"po"}},
		}}
	default:
		return nil
	}
}
