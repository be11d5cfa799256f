// Korean texts of access rules, users, quotas and the audit log by their English ones.
export const koreanOfAccess: Record<string, string> = {
  Access: "접근 권한",
  "Rules and users": "규칙과 사용자",
  Quotas: "쿼터",
  "Audit log": "감사 로그",
  "Access rules are off": "접근 규칙이 꺼져 있습니다",
  "Every client that may connect may do everything.":
    "연결할 수 있는 클라이언트는 무엇이든 할 수 있습니다.",
  "Rules work when every broker has authorizer.class.name and super.users. docs/security.md, From open to closed, says how a running cluster gets them.":
    "모든 브로커에 authorizer.class.name과 super.users를 설정하면 규칙이 적용됩니다. 실행 중인 클러스터에 적용하는 방법은 docs/security.md의 From open to closed에 있습니다.",
  Rules: "규칙",
  "Super users, who may do everything: {names}.": "무엇이든 할 수 있는 슈퍼 사용자: {names}.",
  "What no rule is about is open to everybody (allow.everyone.if.no.acl.found).":
    "규칙이 없는 것은 누구나 쓸 수 있습니다 (allow.everyone.if.no.acl.found).",
  "What no rule allows is refused.": "규칙이 허용하지 않는 것은 거부됩니다.",
  "The brokers do not tell who is a super user, and whether what no rule is about is open.":
    "브로커가 슈퍼 사용자와, 규칙이 없는 것이 열려 있는지를 알려 주지 않습니다.",
  "Rule contains": "규칙에 포함된 글자",
  "No rule is like that.": "그런 규칙이 없습니다.",
  "There are no rules.": "규칙이 없습니다.",
  Permission: "권한",
  allow: "허용",
  deny: "거부",
  Principal: "주체",
  Operation: "작업",
  Resource: "리소스",
  "From host": "호스트",
  any: "모든 호스트",
  "this name only": "이 이름만",
  "Would it be allowed?": "허용될까요?",
  Check: "확인",
  Allowed: "허용됨",
  "Users who log in by SCRAM": "SCRAM으로 로그인하는 사용자",
  "No user has such a name.": "그런 이름의 사용자가 없습니다.",
  "There are none. suwi users add NAME adds one.":
    "없습니다. suwi users add NAME으로 추가할 수 있습니다.",
  "Mechanisms (iterations)": "방식 (반복 횟수)",
  "Show the rules": "규칙 보기",
  "Show the quotas": "쿼터 보기",
  "Add a rule": "규칙 추가",
  "Remove a rule": "규칙 제거",
  "User:alice; User:* for everybody": "User:alice, 모두는 User:*",
  "topic:orders, topic:orders-* for a prefix, group:*, cluster":
    "topic:orders, 접두사는 topic:orders-*, group:*, cluster",
  "An address, or a range as 10.0.0.0/8. Empty: any":
    "주소 또는 10.0.0.0/8 같은 범위. 비워 두면 모든 호스트",
  "This can lock somebody out. Type {name} to confirm it.":
    "누군가의 접근이 막힐 수 있습니다. 확인하려면 {name}을(를) 입력하세요.",
  "What clients may use per second, of each broker by itself.":
    "클라이언트가 브로커마다 초당 쓸 수 있는 양입니다.",
  "No quota is like that.": "그런 쿼터가 없습니다.",
  "There are no quotas. suwi quotas set limits what clients use.":
    "쿼터가 없습니다. suwi quotas set으로 클라이언트의 사용량을 제한할 수 있습니다.",
  Whose: "대상",
  Quota: "쿼터",
  Limit: "한도",
  "How close clients are to their quotas": "클라이언트의 쿼터 사용량",
  "Of some brokers it is not known; only Suwi's tell it.":
    "일부 브로커의 정보는 알 수 없습니다. Suwi 브로커만 알려 줍니다.",
  "Client contains": "클라이언트에 포함된 글자",
  "No client has used something of a quota lately.": "최근에 쿼터를 사용한 클라이언트가 없습니다.",
  "Used of late": "최근 사용량",
  "Of the limit": "한도 대비",
  "On broker": "브로커",
  "Throttled for": "제한 시간",
  "{count} others are further away from theirs.":
    "한도에서 더 먼 클라이언트가 {count}개 더 있습니다.",
  "Set a quota": "쿼터 설정",
  Set: "설정",
  "Remove a quota": "쿼터 제거",
  "Client id": "클라이언트 ID",
  "*: each that has no quota of its own": "*: 자신의 쿼터가 없는 모두에게 각각",
  "Per second, of each broker": "초당, 브로커마다",
  "Bytes per second, of each broker": "초당 바이트, 브로커마다",
  "Percent of a broker's event loop: 100 is all of it":
    "브로커 이벤트 루프의 비율 (%): 100이면 전부",
  "Partitions created and deleted per second": "초당 만들고 삭제하는 파티션 수",
  "New connections per second, of each broker": "초당 새 연결 수, 브로커마다",
  "The audit log is off": "감사 로그가 꺼져 있습니다",
  "Some brokers have no audit log: {nodes}": "감사 로그가 없는 브로커: {nodes}",
  "Set audit.log.dir on every broker: changes and refusals are written there then.":
    "모든 브로커에 audit.log.dir를 설정하면 변경과 거부가 그곳에 기록됩니다.",
  "Which lines": "표시할 줄",
  "Changes and refusals": "변경과 거부",
  "Only refusals": "거부만",
  "Line contains": "줄에 포함된 글자",
  "No line is like that, of the newest of each broker.":
    "각 브로커의 최신 줄 가운데 그런 줄이 없습니다.",
  "Nothing was changed or refused yet.": "아직 변경되거나 거부된 것이 없습니다.",
  "{time}: broker {node} could not write {count} lines":
    "{time}: 브로커 {node}가 {count}줄을 기록하지 못했습니다",
  Outcome: "결과",
  ok: "성공",
  refused: "거부됨",
  Request: "요청",
  "Why refused": "거부된 이유",
  "On what": "대상",
};
