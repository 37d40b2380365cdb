-- Every statement that the PostgreSQL store sends, by name. All values are parameters.

-- name: insert_thread
-- A thread that begins with a head of another one inherits up to it.
insert into perdure.threads (thread_id, tenant, agent, kind, title, parent_thread_id, root_thread_id,
                             spawn_message_id, spawn_parts, head_id, created_at, model)
values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, $10), $9, $10, coalesce($11, now()), $12)
on conflict (thread_id) do nothing
returning *

-- name: get_thread
select * from perdure.threads where thread_id = $1

-- name: lock_thread
select * from perdure.threads where thread_id = $1 for no key update

-- name: ancestor_chain
with recursive chain as (
    select t.*, 0 as distance from perdure.threads t where t.thread_id = $1
  union all
    select p.*, c.distance + 1 from chain c join perdure.threads p on p.thread_id = c.parent_thread_id
)
select * from chain order by distance desc

-- name: children
select * from perdure.threads where parent_thread_id = $1 and closed_at is null order by thread

-- name: close_thread
with closed as (
    update perdure.threads set closed_at = coalesce(closed_at, now()) where thread_id = $1 returning thread_id
)
select pg_notify('perdure', thread_id) from closed

-- name: append_messages
select refused, conflict from perdure.append_messages($1, $2, $3, $4, $5)

-- name: path
-- One row per message, oldest first; a thread without messages gives one row without a message, no thread gives none.
-- It ends with the message $3 of the thread, or with the head; a thread without a head starts where it was spawned.
-- `cut` is the number of parts that are inherited, null for all. With $4 no summary ends the way up.
with recursive ending as (
    select t.thread, t.thread_id, t.parent_thread_id, t.seq, t.shape, t.model,
           case when $3::text is null then coalesce(t.head_id, t.spawn_message_id)
           else (select m.id from perdure.messages m where m.id = $3 and m.thread is not distinct from t.thread) end as id,
           case when $3 is null and t.head_id is null then t.spawn_parts end as cut
    from perdure.threads t where t.thread_id = $1
), path as (
    select m.*, ending.cut, 0 as depth, s.id as summary_id, s.parts as summary_parts
    from ending
    join perdure.messages m on m.id = ending.id and m.id is distinct from $2
    left join lateral (
        select s.id, s.parts from perdure.summaries s
        where not $4 and s.message_id = m.id and (ending.cut is null or s.parts <= ending.cut)
        order by s.parts desc, s.number desc limit 1
    ) s on true
  union all
    select m.*, p.parent_parts, p.depth + 1, s.id, s.parts
    from path p
    join perdure.messages m on m.id = p.parent_id and m.id is distinct from $2
    left join lateral (
        select s.id, s.parts from perdure.summaries s
        where not $4 and s.message_id = m.id and (p.parent_parts is null or s.parts <= p.parent_parts)
        order by s.parts desc, s.number desc limit 1
    ) s on true
    where p.summary_id is null
), line as (
    select e.parent_thread_id, e.shape, e.shape as basis from ending e
  union all
    select t.parent_thread_id, t.shape, t.shape - t.summed from line l
    join perdure.threads t on t.thread_id = l.parent_thread_id
), sums as (
    select sum(line.shape)::bigint as shape, sum(line.basis)::bigint as basis from line
)
select ending.seq as thread_seq, ending.id as end_id, sums.shape, sums.basis, ending.model, path.*, owner.thread_id, maker.thread_id as summary_thread_id, s.body, s.kind, s.items, s.covered, s.previous_id,
       s.shape as summary_shape, s.usage as summary_usage,
       array(
           select perdure.part_body(part.body, part.decision) from perdure.parts part
           where part.message_id = path.id and part.position >= coalesce(path.summary_parts, 0)
             and (path.cut is null or part.position < path.cut)
           order by part.position
       ) as parts
from ending cross join sums
left join path on true
left join perdure.threads owner on owner.thread = path.thread
left join perdure.summaries s on s.id = path.summary_id
left join perdure.threads maker on maker.thread = s.thread
order by path.depth desc

-- name: message_counts
-- `shown` are the parts of a message that no summary stands for; below it nothing does. Of a message at which one hangs
-- those that follow it are visible.
with recursive path as (
    select m.id, m.parent_id, m.parent_parts, m.role, e.cut, true as above, s.parts as summary_parts
    from (
        select coalesce(t.head_id, t.spawn_message_id) as id, case when t.head_id is null then t.spawn_parts end as cut
        from perdure.threads t where t.thread_id = $1
    ) e
    join perdure.messages m on m.id = e.id
    left join lateral (
        select s.parts from perdure.summaries s where s.message_id = m.id and (e.cut is null or s.parts <= e.cut)
        order by s.parts desc, s.number desc limit 1
    ) s on true
  union all
    select m.id, m.parent_id, m.parent_parts, m.role, p.parent_parts, p.above and p.summary_parts is null, s.parts
    from path p
    join perdure.messages m on m.id = p.parent_id
    left join lateral (
        select s.parts from perdure.summaries s
        where p.above and p.summary_parts is null and s.message_id = m.id
          and (p.parent_parts is null or s.parts <= p.parent_parts)
        order by s.parts desc, s.number desc limit 1
    ) s on true
)
select count(path.role) as total, count(*) filter (where path.role = 'user') as user,
       count(*) filter (where path.role = 'assistant') as assistant, count(*) filter (where path.role = 'event') as event,
       count(*) filter (where path.above and (path.summary_parts is null or exists (
           select from perdure.parts part
           where part.message_id = path.id and part.position >= path.summary_parts
             and (path.cut is null or part.position < path.cut)
       ))) as visible
from perdure.threads t left join path on true
where t.thread_id = $1
group by t.thread

-- name: live_step
select s.*, array(
    select c.body from perdure.chunks c
    where c.thread = s.thread and c.turn = s.turn and c.step = s.step order by c.seq
) as chunks
from perdure.steps s where s.thread = (select thread from perdure.threads where thread_id = $1)
order by s.turn desc, s.step desc limit 1

-- name: step
select s.*, array(
    select c.body from perdure.chunks c
    where c.thread = s.thread and c.turn = s.turn and c.step = s.step order by c.seq
) as chunks
from perdure.steps s where s.thread = (select thread from perdure.threads where thread_id = $1) and s.turn = $2 and s.step = $3

-- name: begin_step
select * from perdure.begin_step($1, $2, $3, $4)

-- name: append_chunks
select perdure.append_chunks($1, $2, $3, $4, $5, $6)

-- name: notify
-- Without waiting for the disk: the lock that notifications take is held until then.
with unsafe as materialized (
    select set_config('synchronous_commit', 'off', true)
)
select pg_notify('perdure', thread_id) from unsafe cross join unnest($1::text[]) as thread_id

-- name: finish_step
select perdure.finish_step($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: changes
-- A message is told twice: when it was added, a turn as running, so that it comes before its parts; and when it changed,
-- so that nobody takes it for settled before its last part is there. A call is told again when it was decided about.
with t as materialized (
    select thread, tree_seq from perdure.threads where thread_id = $1
), change as materialized (
    select change.* from t cross join lateral (
        (select 'message' as kind, told.seq, m.turn, 0 as step, 0 as attempt, m.id as message_id, 0 as position,
                null as body
         from perdure.messages m
         cross join lateral (select m.seq union select m.changed) as told(seq)
         where m.thread = t.thread and m.changed > $2 and told.seq > $2
         order by told.seq limit $3)
      union all
        (select 'part', p.seq, 0, 0, 0, p.message_id, p.position, perdure.part_body(p.body, p.decision)
         from perdure.parts p where p.thread = t.thread and p.seq > $2 order by p.seq limit $3)
      union all
        (select 'part', p.decided, 0, 0, 0, p.message_id, p.position, perdure.part_body(p.body, p.decision)
         from perdure.parts p where p.thread = t.thread and p.decided > $2 order by p.decided limit $3)
      union all
        (select 'attempt', s.began, s.turn, s.step, s.attempt, null, 0, null
         from perdure.steps s where s.thread = t.thread and s.began > $2)
      union all
        (select 'chunk', c.seq, c.turn, c.step, c.attempt, null, 0, c.body
         from perdure.chunks c where c.thread = t.thread and c.seq > $2 order by c.seq limit $3)
      union all
        (select 'call', c.seq, c.turn, c.step, 0, c.message_id, c.position,
                (to_jsonb(c) || jsonb_build_object('body', perdure.part_body(p.body, p.decision)))::text
         from perdure.calls c join perdure.parts p using (message_id, position)
         where c.thread = t.thread and c.seq > $2)
      union all
        (select 'choice', c.seq, 0, 0, 0, null, 0, to_jsonb(c)::text
         from perdure.choices c where c.thread = t.thread and c.seq > $2)
      union all
        (select 'view', v.seq, 0, 0, 0, null, 0, to_jsonb(v)::text
         from perdure.views v where v.thread = t.thread and v.seq > $2)
      union all
        (select 'summary', s.seq, 0, 0, 0, null, 0, jsonb_build_object(
             'summary_id', s.id, 'summary_thread_id', $1::text, 'id', s.message_id, 'summary_parts', s.parts,
             'body', s.body, 'kind', s.kind, 'items', s.items, 'covered', s.covered, 'previous_id', s.previous_id,
             'summary_shape', s.shape, 'summary_usage', s.usage)::text
         from perdure.summaries s
         where s.thread = t.thread and s.seq > $2 and s.message_id is not null order by s.seq limit $3)
      union all
        (select 'tree', t.tree_seq, 0, 0, 0, null, 0, null where t.tree_seq > $2)
    ) change
    order by change.seq limit $3
)
select kind, seq, turn, step, attempt, message_id, position,
       case kind when 'message' then (
           select (to_jsonb(m) || jsonb_build_object('thread_id', $1::text)
                   || case when change.seq < m.changed and m.role = 'assistant' then '{"state": "running", "reason": null, "detail": null}'::jsonb
                      else '{}' end)::text
           from perdure.messages m where m.id = change.message_id
       ) else body end as body
from change order by seq

-- name: put_blob
with t as (
    select thread from perdure.threads where thread_id = $1
), put as (
    insert into perdure.blobs (thread, sha256, media_type, data) select t.thread, $2, $3, $4 from t on conflict do nothing
)
select thread from t

-- name: get_blob
with recursive line as (
    select t.thread, t.parent_thread_id from perdure.threads t where t.thread_id = $1
  union all
    select p.thread, p.parent_thread_id from line l join perdure.threads p on p.thread_id = l.parent_thread_id
)
select b.data from line join perdure.blobs b on b.thread = line.thread and b.sha256 = $2 limit 1

-- name: stored_blobs
with recursive line as (
    select t.thread, t.parent_thread_id from perdure.threads t where t.thread_id = $1
  union all
    select p.thread, p.parent_thread_id from line l join perdure.threads p on p.thread_id = l.parent_thread_id
)
select b.sha256 from line join perdure.blobs b on b.thread = line.thread and b.sha256 = any($2::bytea[])

-- name: add_summary
select perdure.add_summary($1, $2)

-- name: are_open
select call_id from perdure.calls
where thread = (select thread from perdure.threads where thread_id = $1) and call_id = any($2::text[])

-- name: tail
-- Of the turn that runs, wherever it is in the tree; or else of the first that waited for people, and whose calls have
-- their results; or else of the head. What is below it is counted in this thread: what hangs on it in others is their
-- own.
select t.*, head.role as head_role, head.state as head_state, head.reason as head_reason, head.detail as head_detail,
       below.followers, shown.id is distinct from t.head_id and not below.has_head as hidden,
       (select to_jsonb(m) || jsonb_build_object('thread_id', owner.thread_id)
        from perdure.messages m join perdure.threads owner on owner.thread = m.thread
        where m.id = shown.id)::text as message,
       (select count(*) from perdure.parts p where p.message_id = shown.id) as parts,
       (select p.body from perdure.parts p where p.message_id = shown.id order by p.position desc limit 1) as last_part,
       coalesce((select s.attempt from perdure.steps s where s.thread = t.thread
                 order by s.turn desc, s.step desc limit 1), 0) as attempt,
       (select json_agg(c order by c.turn, c.step, c.index)::text
        from (select c.*, perdure.part_body(p.body, p.decision) as body
              from perdure.calls c join perdure.parts p using (message_id, position)
              where c.thread = t.thread and c.message_id = shown.id) c) as calls,
       (select json_agg(s order by s.number)::text
        from perdure.subscriptions s where s.thread = t.thread) as subscriptions,
       (select json_agg(d order by d.number)::text from perdure.decisions d where d.thread = t.thread) as decisions,
       (select json_agg(json_build_array(i.input_id, i.digest) order by i.seq)::text
        from (select i.* from (
                  select i.input_id, i.digest, m.seq
                  from (select m.thread, m.input_id, m.seq from perdure.messages m
                        where m.thread = t.thread and m.input_id is not null
                        order by m.changed desc limit $2) m
                  join perdure.inputs i on i.thread = m.thread and i.input_id = m.input_id
                union all
                  (select i.input_id, i.digest, i.seq from perdure.inputs i
                   where i.thread = t.thread and i.seq is not null order by i.seq desc limit $2)
              ) i order by i.seq desc limit $2) i) as processed,
       (select count(*) from perdure.threads c
        where c.parent_thread_id = t.thread_id and c.closed_at is null) as children,
       array(select c.thread_id
             from (select c.thread, c.thread_id from perdure.threads c
                   where c.parent_thread_id = t.thread_id and c.closed_at is null and c.version = 1 and c.turn = 0
                   order by c.thread desc limit $3) c
             order by c.thread) as unstarted,
       cardinality(array_remove(resting.answered, shown.id)) > 0 as answered,
       (select json_build_object('call_id', c.call_id, 'due', c.due)::text
        from perdure.calls c join perdure.messages m on m.id = c.message_id
        where c.thread = t.thread and m.state = 'requires_action' and m.id <> shown.id
          and c.result is null and c.due is not null
        order by c.due, c.call_id limit 1) as deadline
from perdure.threads t
left join perdure.messages head on head.id = t.head_id
left join lateral (
    select m.id from perdure.messages m where m.thread = t.thread and m.state = 'running' order by m.seq desc limit 1
) running on true
cross join lateral (
    select array(select c.message_id from perdure.calls c join perdure.messages m on m.id = c.message_id
                 where c.thread = t.thread and m.state = 'requires_action'
                 group by c.message_id having bool_and(c.result is not null)
                 order by min(c.turn), c.message_id) as answered
) resting
cross join lateral (select coalesce(running.id, resting.answered[1], t.head_id) as id) shown
cross join lateral (
    with recursive below as (
        select m.id from perdure.messages m where m.parent_id = shown.id and m.thread is not distinct from t.thread
      union all
        select m.id from below b join perdure.messages m on m.parent_id = b.id and m.thread is not distinct from t.thread
    )
    select count(*) as followers, coalesce(bool_or(below.id = t.head_id), false) as has_head from below
) below
where t.thread_id = $1

-- name: processed_ids
select input_id, digest from perdure.inputs
where thread = (select thread from perdure.threads where thread_id = $1) and input_id = any($2::text[])

-- name: is_done
-- Whether a request that says the same was carried out under some id; asked only of what cannot be done.
select exists (
    select from perdure.inputs
    where thread = (select thread from perdure.threads where thread_id = $1) and digest = $2
) as done

-- name: subscriptions
select * from perdure.subscriptions where thread = (select thread from perdure.threads where thread_id = $1) order by number

-- name: open_calls
select c.*, perdure.part_body(p.body, p.decision) as body
from perdure.calls c join perdure.parts p using (message_id, position)
where c.thread = (select thread from perdure.threads where thread_id = $1) order by c.turn, c.step, c.index

-- name: shown_calls
-- Of the turn that is shown or runs; those of others wait for their branch to be shown.
select c.*, perdure.part_body(p.body, p.decision) as body
from perdure.threads t
join perdure.calls c on c.thread = t.thread
join perdure.messages m on m.id = c.message_id and (m.id = t.head_id or m.state = 'running')
join perdure.parts p on p.message_id = c.message_id and p.position = c.position
where t.thread_id = $1 order by c.turn, c.step, c.index

-- name: open_call
select c.*, perdure.part_body(p.body, p.decision) as body from perdure.calls c join perdure.parts p using (message_id, position)
where c.thread = (select thread from perdure.threads where thread_id = $1) and c.call_id = $2

-- name: start_call
select c.*, perdure.part_body(p.body, p.decision) as body
from perdure.start_call($1, $2, $3) as c join perdure.parts p on p.message_id = c.message_id and p.position = c.position

-- name: stage_result
select perdure.stage_result($1, $2, $3)

-- name: get_metadata
select body from perdure.metadata where thread = (select thread from perdure.threads where thread_id = $1)

-- name: set_metadata
insert into perdure.metadata (thread, body) values ($1, $2)
on conflict (thread) do update set body = excluded.body

-- name: put_choice
select perdure.put_choice($1, $2, $3, $4, $5)

-- name: choices
-- Those that wait. A call that has its result asks nothing more.
select c.* from perdure.choices c join perdure.calls call using (thread, call_id)
where c.thread = (select thread from perdure.threads where thread_id = $1) and c.body is not null and call.result is null
order by c.seq

-- name: remove_choice
select perdure.remove_choice($1, $2)

-- name: put_view
select perdure.put_view($1, $2, $3, $4, $5)

-- name: views
select * from perdure.views where thread = (select thread from perdure.threads where thread_id = $1) and shown
order by seq

-- name: get_key
select key from perdure.keys where name = $1

-- name: make_key
-- Of several who make it at once all get that of the first.
insert into perdure.keys (name, key) values ($1, $2) on conflict (name) do update set name = excluded.name returning key

-- name: tree
-- The shape of a thread's tree, for `perdure.tree`. In the order in which the messages came.
select m.id, m.parent_id, coalesce(m.place, m.seq) as place, m.role, m.remembered, m.state
from perdure.messages m where m.thread = $1 order by m.seq

-- name: tree_state
select t.head_id, t.remembered, t.turn, t.title, head.state, head.reason, head.detail, running.id as running_id
from perdure.threads t
left join perdure.messages head on head.id = t.head_id
left join lateral (
    select m.id from perdure.messages m where m.thread = t.thread and m.state = 'running' order by m.seq desc limit 1
) running on true
where t.thread = $1

-- name: tree_messages
select m.*, $2::text as thread_id, coalesce(m.place, m.seq) as ordered_place from perdure.messages m
where m.thread = $1 order by m.seq

-- name: tree_parts
select p.message_id, p.position, perdure.part_body(p.body, p.decision) as body from perdure.parts p where p.thread = $1

-- name: message_content
-- What an import can replace of these messages.
select m.id, m.state, m.reason, m.detail, m.metadata, m.source_id, m.options,
       array(select perdure.part_body(p.body, p.decision) from perdure.parts p
             where p.message_id = m.id order by p.position) as parts
from perdure.messages m where m.id = any($1::text[])

-- name: message_metadata
select m.metadata from perdure.messages m where m.id = $2 and m.thread is not distinct from $1

-- name: part_count
select count(*) as parts from perdure.parts where message_id = $1

-- name: words
-- What was said to the thread in these messages.
select p.body from perdure.messages m join perdure.parts p on p.message_id = m.id
where m.id = any($1::text[]) and m.role <> 'assistant'

-- name: blob_beginnings
select encode(sha256, 'hex') as blob, substring(data from 1 for $3) as beginning
from perdure.blobs where thread = $1 and encode(sha256, 'hex') = any($2::text[])

-- name: named_blobs
-- Names of blobs in the content of messages: SHA-256 in hex, wherever they stand.
select distinct hex[1] as blob
from (
    select p.body from perdure.parts p where p.message_id = any($2::text[])
  union all
    select unnest(array[c.result, c.interim]) from perdure.calls c
    where c.thread = $1 and c.message_id = any($2::text[])
) content, regexp_matches(content.body, '[0-9a-f]{64}', 'g') as hex

-- name: purge_blobs
select perdure.purge_blobs(t, $2::text[]) from perdure.threads t where t.thread = $1

-- name: tell_below
select perdure.tell_below(t, $2::text[]) from perdure.threads t where t.thread = $1

-- name: void_summaries
-- All at or below these messages, in whichever thread.
with recursive below as (
    select id from unnest($1::text[]) as id
  union
    select m.id from below b join perdure.messages m on m.parent_id = b.id
)
update perdure.summaries s set message_id = null, body = '""', items = null from below where s.message_id = below.id

-- name: put_turn_context
select perdure.put_turn_context($1, $2, $3, $4)

-- name: turn_context
select body from perdure.turn_contexts
where thread = (select thread from perdure.threads where thread_id = $1) and turn = $2 and step = $3

-- name: drop_turn_contexts
delete from perdure.turn_contexts where thread = (select thread from perdure.threads where thread_id = $1) and turn = $2

-- name: provider_states
select * from perdure.provider_states where thread = (select thread from perdure.threads where thread_id = $1)

-- name: finish_hook
select perdure.finish_hook($1, $2, $3, $4, $5, $6)

-- name: finished_hooks
select source from perdure.told_turns
where thread = (select thread from perdure.threads where thread_id = $1) and turns @> $2::int order by source collate "C"

-- name: append_log
select perdure.append_log($1, $2, $3)

-- name: read_log
select body from perdure.logged_messages
where thread = (select thread from perdure.threads where thread_id = $1) and source = $2 order by number

-- name: set_model
update perdure.threads set model = $2 where thread_id = $1 returning thread

-- name: add_usage
select perdure.count_call($1, $2, $3, $4, $5)

-- name: spending
-- Each bound by its name, with when it began; a turn whose message is gone has no row. $3: with the tree, $4:
-- with the tenant.
with t as materialized (
    select * from perdure.threads where thread_id = $1
), root as materialized (
    select r.* from t join perdure.threads r on r.thread_id = coalesce(t.root_thread_id, t.thread_id)
    where $3
), spender as (
    select 'thread' as bound, t.* from t
  union all
    select 'tree', root.* from root
  union all
    select 'tree', c.* from t join perdure.threads c on c.root_thread_id = coalesce(t.root_thread_id, t.thread_id)
    where $3 and c.thread_id <> coalesce(t.root_thread_id, t.thread_id)
  union all
    select 'tenant', o.* from t join perdure.threads o on o.tenant = t.tenant where $4
)
select bound, json_build_object('requests', sum(requests), 'input_tokens', sum(input_tokens),
                                'output_tokens', sum(output_tokens), 'cached_tokens', sum(cached_tokens),
                                'nano_usd', sum(nano_usd), 'unpriced', sum(unpriced))::text as usage,
       extract(epoch from case bound when 'thread' then (select created_at from t)
                          when 'tree' then (select created_at from root) end)::double precision as since
from spender group by bound
union all
select 'turn', m.usage, extract(epoch from m.created_at)::double precision
from t join perdure.messages m on m.id = perdure.message_of(t.thread, $2)
where $2::int is not null

-- name: tenant_usage
-- No row if the tenant has no thread.
select json_build_object('requests', sum(requests), 'input_tokens', sum(input_tokens),
                         'output_tokens', sum(output_tokens), 'cached_tokens', sum(cached_tokens),
                         'nano_usd', sum(nano_usd), 'unpriced', sum(unpriced))::text as usage
from perdure.threads where tenant = $1 having count(*) > 0
