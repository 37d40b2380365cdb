-- Hooks that have run, in a few rows for each thread. Errors: those of 0002_functions.sql.

-- Held from before the copy to the end: a hook that a process of the release before finishes in between would be copied
-- by nobody and go with the table. To drop it takes both locks too, and whoever finishes a hook asks for them in this
-- order.
lock table perdure.threads, perdure.finished_hooks in access exclusive mode;

-- The turns after which a provider's hook has run. No turn is ever forgotten: its hook may be begun again at any time, by
-- a workflow that is reset or an attempt that was taken for lost, and must find that it has run. But turns are numbered
-- one by one, and nearly all are told: so they are one range, which grows at its end, and another one after each turn
-- that was not told, since it waits for people or its hook was given up.
--
-- (Rows of spent_calls stay for the same reason: a worker that was out of reach may count a call again at any time. There
-- is one for each model call that was stopped or failed, and none for others.)
create table perdure.told_turns (
    thread bigint not null references perdure.threads on delete cascade,
    source text not null,
    turns  int4multirange not null,
    primary key (thread, source)
);

insert into perdure.told_turns (thread, source, turns)
select thread, source, range_agg(int4range(turn, turn, '[]')) from perdure.finished_hooks group by thread, source;

drop table perdure.finished_hooks;

-- As a reader of the release before asks for it.
create view perdure.finished_hooks as
select told.thread, turn, told.source, 0::bigint as number
from perdure.told_turns told
cross join lateral unnest(told.turns) as span
cross join lateral generate_series(lower(span), upper(span) - 1) as turn;

-- As the function of before writes it, if it was called already and has waited for the end of this.
create rule finished as on insert to perdure.finished_hooks do instead
insert into perdure.told_turns as told (thread, source, turns)
values (new.thread, new.source, int4multirange(int4range(new.turn, new.turn, '[]')))
on conflict (thread, source) do update set turns = told.turns + excluded.turns;

create or replace function perdure.finish_hook(
    p_thread_id text, p_turn int, p_source text, p_body text, p_version bigint, p_schema_version bigint
) returns boolean language plpgsql as $$
declare
    t perdure.threads := perdure.lock_thread(p_thread_id);
begin
    if exists (select from perdure.told_turns where thread = t.thread and source = p_source and turns @> p_turn) then
        return true;
    end if;
    if p_body is not null then
        if p_version <> coalesce(
            (select s.version from perdure.provider_states s where s.thread = t.thread and s.source = p_source), 0
        ) then
            return false;
        end if;
        insert into perdure.provider_states (thread, source, body, version, schema_version)
        values (t.thread, p_source, p_body, p_version + 1, p_schema_version)
        on conflict (thread, source) do update
        set (body, version, schema_version) = (excluded.body, excluded.version, excluded.schema_version);
    end if;
    insert into perdure.told_turns as told (thread, source, turns)
    values (t.thread, p_source, int4multirange(int4range(p_turn, p_turn, '[]')))
    on conflict (thread, source) do update set turns = told.turns + excluded.turns;
    return true;
end $$;
