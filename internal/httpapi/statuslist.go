package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// GetStatusList serves a list of revoked tokens to any caller (draft-ietf-oauth-status-list-20, section 8). It answers 304 if the
// caller already has the current list.
func (s *Server) GetStatusList(w http.ResponseWriter, r *http.Request, id string) {
	s.begin(r, "getStatusList")
	list, err := s.statusList(r, id)
	if err != nil {
		s.fail(w, r, nobody, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/statuslist+jwt")
	h.Set("Cache-Control", "public, max-age="+strconv.FormatInt(seconds(broker.StatusListTTL), 10))
	h.Set("ETag", `"`+list.Tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(list.Token))
}

func (s *Server) statusList(r *http.Request, id string) (broker.StatusList, error) {
	if !ourID(id) {
		return broker.StatusList{}, &requestError{kind: broker.ErrNotFound, detail: "id"}
	}
	if err := s.rules.check(r, nobody, callOf(r).operation, nil); err != nil {
		return broker.StatusList{}, err
	}
	list, err := s.cfg.Broker.StatusList(r.Context(), id)
	return list, notFound(err, "id")
}
