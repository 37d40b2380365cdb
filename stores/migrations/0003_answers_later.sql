-- What answers later: counters of subscriptions, timers, questions to people, views, child threads, secrets.
--
-- Errors: those of 0002_functions.sql, and PD007 too many views.

alter table perdure.subscriptions
    add column arguments text not null default '"{}"',
    add column received  bigint not null default 0,
    add column paused    text;

-- Seconds since 1970, as in batches.
alter table perdure.calls add column due double precision;

-- Neither roots nor closed threads are in it. Of what is in it only closing changes anything, so all other writes still
-- update a thread's row in place.
create index threads_children on perdure.threads (parent_thread_id, thread)
    where parent_thread_id is not null and closed_at is null;

-- Questions to people. They go with their call, whichever way that goes. Without a body a question is answered: the
-- row stays to tell readers, the words and links do not. No release has written to the table that was here.
drop table perdure.choices;
create table perdure.choices (
    thread    bigint not null references perdure.threads on delete cascade,
    choice_id text not null,
    call_id   text not null,
    kind      text not null,
    body      text,
    seq       bigint not null,
    primary key (thread, choice_id),
    foreign key (thread, call_id) references perdure.calls on delete cascade
);

-- A view that was cleared keeps its row, to tell readers, and is not `shown`.
create table perdure.views (
    thread    bigint not null references perdure.threads on delete cascade,
    view_type text not null,
    content   text not null,
    shown     boolean not null,
    seq       bigint not null,
    primary key (thread, view_type)
);

create table perdure.keys (
    name text primary key,
    key  bytea not null
);

-- Another time is a change for readers, who see it with the open calls.
create function perdure.apply_set_due(t perdure.threads, op jsonb) returns perdure.threads language plpgsql as $$
begin
    update perdure.calls set due = (op ->> 'due')::double precision, seq = t.seq + 1
    where thread = t.thread and call_id = op ->> 'call_id';
    if found then
        t.seq := t.seq + 1;
    end if;
    return t;
end $$;

-- A row keeps its number, and so its place, when it is written again. A writer of the release before says nothing of
-- the newer columns.
create function perdure.track_subscription(t perdure.threads, op jsonb) returns void language sql as $$
    insert into perdure.subscriptions (thread, call_id, tool, arguments, received, paused)
    values (t.thread, op ->> 'call_id', op ->> 'tool', coalesce(op ->> 'arguments', '"{}"'),
            coalesce((op ->> 'received')::bigint, 0), op ->> 'paused')
    on conflict (thread, call_id) do update
    set (tool, arguments, received, paused) = (excluded.tool, excluded.arguments, excluded.received, excluded.paused);
$$;

create or replace function perdure.append_messages(
    p_thread_id text, p_number bigint, p_sync_id text, p_inputs jsonb, p_operations jsonb
) returns table (refused text, conflict boolean) language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
    op jsonb;
begin
    if t.version = p_number and t.sync_id = p_sync_id then
        return;
    elsif t.version <> p_number - 1 then
        raise exception using errcode = 'PD002', message = t.version::text;
    end if;
    if p_inputs <> '{}' then
        return query
            select i.input_id, i.digest is distinct from p_inputs ->> i.input_id
            from perdure.inputs i
            where i.thread = t.thread and i.input_id = any(array(select jsonb_object_keys(p_inputs)));
        if found then
            return;
        end if;
        insert into perdure.inputs (thread, input_id, digest) select t.thread, key, value from jsonb_each_text(p_inputs);
    end if;
    for op in select jsonb_array_elements(p_operations) loop
        case op ->> 'kind'
            when 'append_messages' then t := perdure.apply_append_messages(t, op);
            when 'append_parts' then t := perdure.apply_append_parts(t, op);
            when 'commit_step' then t := perdure.apply_commit_step(t, op);
            when 'stage_result' then t := perdure.apply_stage_result(t, op ->> 'call_id', op ->> 'result');
            when 'commit_results' then t := perdure.apply_commit_results(t, op);
            when 'set_status' then t := perdure.apply_set_status(t, op);
            when 'set_due' then t := perdure.apply_set_due(t, op);
            when 'close_thread' then t.closed_at := coalesce(t.closed_at, now());
            when 'track_subscription' then perform perdure.track_subscription(t, op);
            when 'remove_subscription' then
                delete from perdure.subscriptions where thread = t.thread and call_id = op ->> 'call_id';
        end case;
    end loop;
    update perdure.threads
    set (head_id, version, sync_id, seq, turn, done_turn, done_step, requests, input_tokens, output_tokens,
         cached_tokens, closed_at) = (t.head_id, p_number, p_sync_id, t.seq, t.turn, t.done_turn, t.done_step,
                                      t.requests, t.input_tokens, t.output_tokens, t.cached_tokens, t.closed_at)
    where thread = t.thread;
    perform pg_notify('perdure', p_thread_id);
end $$;

-- A call that has its result asks nothing more. A question that waits already, word for word, is not told again; one
-- that was answered is asked again: a tool that asks twice would wait for ever, a delivery that came twice does no harm.
create function perdure.put_choice(p_thread_id text, p_choice_id text, p_call_id text, p_kind text, p_body text)
returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    if not exists (select from perdure.calls where thread = t.thread and call_id = p_call_id and result is null) then
        raise exception using errcode = 'PD004', message = p_call_id;
    end if;
    insert into perdure.choices as c (thread, choice_id, call_id, kind, body, seq)
    values (t.thread, p_choice_id, p_call_id, p_kind, p_body, t.seq + 1)
    on conflict (thread, choice_id) do update
    set (call_id, kind, body, seq) = (excluded.call_id, excluded.kind, excluded.body, excluded.seq)
    where c.body is distinct from excluded.body;
    if found then
        t.seq := t.seq + 1;
        perform perdure.touch_thread(t);
    end if;
end $$;

create function perdure.remove_choice(p_thread_id text, p_choice_id text) returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    update perdure.choices set body = null, seq = t.seq + 1
    where thread = t.thread and choice_id = p_choice_id and body is not null;
    if found then
        t.seq := t.seq + 1;
        perform perdure.touch_thread(t);
    end if;
end $$;

-- The count holds, since it is taken under the thread's lock.
create function perdure.put_view(p_thread_id text, p_view_type text, p_content text, p_shown boolean, p_most int)
returns void language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    if p_shown and p_most <= (
        select count(*) from perdure.views where thread = t.thread and shown and view_type <> p_view_type
    ) then
        raise exception using errcode = 'PD007', message = p_most::text;
    end if;
    insert into perdure.views as v (thread, view_type, content, shown, seq)
    values (t.thread, p_view_type, p_content, p_shown, t.seq + 1)
    on conflict (thread, view_type) do update
    set (content, shown, seq) = (excluded.content, excluded.shown, excluded.seq)
    where v.content <> excluded.content;
    if found then
        t.seq := t.seq + 1;
        perform perdure.touch_thread(t);
    end if;
end $$;
